/* HTTP GET over libcurl, one handle per thread: byte ranges, redirects followed by hand, a token that leaves for one origin only.
 *
 * Redirects are followed here and not by libcurl, for three reasons: the first answer of a hub (a redirect) carries what identifies the file,
 * the token must not follow to another origin, and no redirect may lead from https to http. */
#ifndef DG_NET_HTTP_H
#define DG_NET_HTTP_H

#include "core/status.h"

#include <stdatomic.h>

#define DG_HTTP_URL_MAX 8192
#define DG_HTTP_REDIRECTS_MAX 8
#define DG_HTTP_TAG_MAX 128
#define DG_HTTP_WAIT_MAX_S 600 /* longest wait a server may ask for */

struct dg_http;

struct dg_http_opts {
    const char *origin; /* "https://host[:port]", what the token belongs to; borrowed while the handle is open */
    const char *token;  /* sent as a bearer token to `origin` only; NULL = none; borrowed */
    long timeout_s;     /* a connection that takes longer, or a transfer slower than 1 KB/s for as long, is given up */
    atomic_bool *stop;  /* set by anyone: the call in progress ends within about a second with DG_E_CANCELLED; NULL = never */
};

/* What a server said. Times in seconds, sizes in bytes; -1 = not said. */
struct dg_http_reply {
    long status;       /* of the last hop; 0 = none came */
    bool redirected;   /* the last hop is another origin than the request's */
    bool html;         /* the body is a web page */
    bool encoded;      /* the body is compressed, which was not asked for */
    int64_t length;    /* of the body */
    int64_t first, last, total; /* Content-Range */
    int64_t retry_after_s;
    char tag[DG_HTTP_TAG_MAX];  /* what identifies the file: X-Linked-Etag, else ETag, of the first hop; without quotes and W/ */
    char error[64];             /* X-Error-Code */
    char next[DG_HTTP_URL_MAX]; /* Link: <...>; rel="next"; "" = none */
    char host[128];             /* of the last hop, for messages */
};

/* How a call that did not end in DG_OK failed. */
enum dg_http_fault {
    DG_HTTP_FINE = 0,
    DG_HTTP_RETRY,    /* the network: the same call may work later */
    DG_HTTP_SETUP,    /* name, address or port: worth a retry only when it worked before */
    DG_HTTP_FATAL,    /* certificate, bad URL, redirect that must not be followed */
    DG_HTTP_CALLER,   /* the caller's callback ended it */
    DG_HTTP_CANCELLED
};

/* Called once when a body with a 2xx status is about to come; false ends the transfer (DG_HTTP_CALLER). */
typedef bool dg_http_head_fn(void *arg, const struct dg_http_reply *r);
/* Called with each piece of that body; false ends the transfer. Bodies of other statuses are thrown away. */
typedef bool dg_http_body_fn(void *arg, const void *data, size_t n);

/* Owner: the caller, dg_http_close. One thread at a time. Errors: DG_E_NOMEM, DG_E_ARG (a token with characters that a header may not hold). */
enum dg_status dg_http_open(struct dg_http **out, const struct dg_http_opts *o, struct dg_error *err) DG_MUST_CHECK;
void dg_http_close(struct dg_http *h); /* NULL is allowed */

/* GETs url; first >= 0 asks for bytes first..last. DG_OK: an answer came whole, whatever its status (reply->status). Otherwise *fault says
 * which kind of failure it was, and err names the host and the reason, never a URL: its query may be a secret. */
enum dg_status dg_http_get(struct dg_http *h, const char *url, int64_t first, int64_t last, dg_http_head_fn *head, dg_http_body_fn *body,
                           void *arg, struct dg_http_reply *reply, enum dg_http_fault *fault, struct dg_error *err) DG_MUST_CHECK;

/* Appends s percent-encoded to dst (a string in n bytes), '/' kept when keep_slash; false when it does not fit. */
bool dg_http_escape(char *dst, size_t n, const char *s, bool keep_slash);
/* "scheme://host[:port]" of an http or https URL; false for anything else, or one that names a user. */
bool dg_http_origin(const char *url, char *dst, size_t n);

#endif
