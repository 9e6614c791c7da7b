#include "net/http.h"

#include "core/faults.h"
#include "core/mem.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define SLOW_BYTES_PER_S 1000L
#define TOKEN_MAX 1024
#define HEADERS_MAX ((size_t)256 << 10) /* bytes of all headers of one call */
#define JUNK_MAX ((size_t)1 << 20)      /* bytes read of a body that nobody wants, so that the connection can be used again */

struct dg_http {
    CURL *curl;
    struct curl_slist *plain, *secret; /* request headers without and with the token */
    char origin[512];
    long timeout_s;
    atomic_bool *stop;
    /* the call in progress */
    dg_http_head_fn *head;
    dg_http_body_fn *body;
    void *arg;
    struct dg_http_reply *reply;
    int hop;
    bool told;    /* head was called for this hop */
    bool refused; /* a callback of the caller said no */
    size_t n_headers, n_junk;
    char curl_error[CURL_ERROR_SIZE];
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CURLcode global_status;

static void global_init(void) { global_status = curl_global_init(CURL_GLOBAL_DEFAULT); }

bool dg_http_escape(char *dst, size_t n, const char *s, bool keep_slash) {
    static const char hex[] = "0123456789ABCDEF";
    size_t k = strlen(dst);
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        bool plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || strchr("-._~", c) || (keep_slash && c == '/');
        if (k + (plain ? 1 : 3) >= n)
            return false;
        if (plain)
            dst[k++] = (char)c;
        else {
            dst[k++] = '%';
            dst[k++] = hex[c >> 4];
            dst[k++] = hex[c & 15];
        }
    }
    dst[k] = 0;
    return true;
}

bool dg_http_origin(const char *url, char *dst, size_t n) {
    size_t scheme = strncasecmp(url, "https://", 8) == 0 ? 8 : strncasecmp(url, "http://", 7) == 0 ? 7 : 0;
    size_t host = scheme ? strcspn(url + scheme, "/?#") : 0;
    if (host == 0 || scheme + host >= n || memchr(url + scheme, '@', host))
        return false;
    for (size_t i = 0; i < scheme + host; i++) {
        char c = url[i];
        if (c <= ' ' || c >= 0x7f)
            return false;
        dst[i] = c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
    }
    dst[scheme + host] = 0;
    return true;
}

/* Value of a header line when it has that name, without white space at its ends; NULL otherwise. */
static const char *header(const char *line, size_t n, const char *name, size_t *len) {
    size_t k = strlen(name);
    if (n <= k || strncasecmp(line, name, k) != 0 || line[k] != ':')
        return NULL;
    const char *v = line + k + 1, *end = line + n;
    while (v < end && (*v == ' ' || *v == '\t'))
        v++;
    while (end > v && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' ' || end[-1] == '\t'))
        end--;
    *len = (size_t)(end - v);
    return v;
}

static bool number(const char *s, size_t n, int64_t *out) {
    int64_t v = 0;
    if (n == 0 || n > 18)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9')
            return false;
        v = v * 10 + (s[i] - '0');
    }
    *out = v;
    return true;
}

/* "bytes 0-99/1000", the total possibly '*'. What does not parse stays -1, which fits no request. */
static void content_range(struct dg_http_reply *r, const char *v, size_t n) {
    const char *end = v + n;
    if (n < 6 || strncasecmp(v, "bytes ", 6) != 0)
        return;
    v += 6;
    const char *dash = memchr(v, '-', (size_t)(end - v)), *slash = memchr(v, '/', (size_t)(end - v));
    int64_t a, b, t = -1;
    if (!dash || !slash || dash > slash || !number(v, (size_t)(dash - v), &a) || !number(dash + 1, (size_t)(slash - dash - 1), &b))
        return;
    if (!number(slash + 1, (size_t)(end - slash - 1), &t) && !(end - slash == 2 && slash[1] == '*'))
        return;
    r->first = a;
    r->last = b;
    r->total = t;
}

static void take_tag(char dst[DG_HTTP_TAG_MAX], const char *v, size_t n) {
    if (n >= 2 && v[0] == 'W' && v[1] == '/') {
        v += 2;
        n -= 2;
    }
    if (n >= 2 && v[0] == '"' && v[n - 1] == '"') {
        v++;
        n -= 2;
    }
    if (n >= DG_HTTP_TAG_MAX)
        return;
    memcpy(dst, v, n);
    dst[n] = 0;
}

/* Seconds, or a date. */
static int64_t retry_after(const char *v, size_t n) {
    int64_t s;
    char date[64];
    if (number(v, n, &s))
        return s;
    if (n >= sizeof date)
        return -1;
    memcpy(date, v, n);
    date[n] = 0;
    time_t t = curl_getdate(date, NULL);
    return t < 0 ? -1 : t > time(NULL) ? (int64_t)(t - time(NULL)) : 0;
}

/* `"resolvers";r=0;t=55`: t seconds until the limit is lifted, when r requests, none, are left. */
static int64_t rate_limit(const char *v, size_t n) {
    int64_t s = -1;
    for (size_t i = 0; i + 3 < n; i++)
        if (v[i] == ';' && v[i + 1] == 't' && v[i + 2] == '=') {
            size_t k = 0;
            while (i + 3 + k < n && v[i + 3 + k] >= '0' && v[i + 3 + k] <= '9')
                k++;
            (void)number(v + i + 3, k, &s);
        }
    return s;
}

/* <URL>; rel="next" */
static void next_link(struct dg_http_reply *r, const char *v, size_t n) {
    const char *open = memchr(v, '<', n), *close = open ? memchr(open, '>', n - (size_t)(open - v)) : NULL;
    if (!close || (size_t)(close - open) > sizeof r->next)
        return;
    size_t rest = n - (size_t)(close - v);
    if (!memmem(close, rest, "rel=\"next\"", 10) && !memmem(close, rest, "rel=next", 8))
        return;
    memcpy(r->next, open + 1, (size_t)(close - open) - 1);
    r->next[close - open - 1] = 0;
}

static size_t on_header(char *line, size_t size, size_t count, void *arg) {
    struct dg_http *h = arg;
    struct dg_http_reply *r = h->reply;
    size_t n = size * count, len;
    const char *v;
    if ((h->n_headers += n) > HEADERS_MAX)
        return 0;
    if (n > 5 && strncasecmp(line, "HTTP/", 5) == 0) { /* a new answer, after a 1xx one or a proxy's */
        r->html = r->encoded = false;
        r->length = r->first = r->last = r->total = r->retry_after_s = -1;
        return n;
    }
    if ((v = header(line, n, "content-length", &len)))
        (void)number(v, len, &r->length);
    else if ((v = header(line, n, "content-range", &len)))
        content_range(r, v, len);
    else if ((v = header(line, n, "content-type", &len)))
        r->html = len >= 9 && strncasecmp(v, "text/html", 9) == 0;
    else if ((v = header(line, n, "content-encoding", &len)))
        r->encoded = !(len == 8 && strncasecmp(v, "identity", 8) == 0);
    else if ((v = header(line, n, "retry-after", &len)))
        r->retry_after_s = retry_after(v, len);
    else if ((v = header(line, n, "ratelimit", &len)) && r->retry_after_s < 0)
        r->retry_after_s = rate_limit(v, len);
    else if ((v = header(line, n, "x-error-code", &len)) && len < sizeof r->error) {
        memcpy(r->error, v, len);
        r->error[len] = 0;
    } else if ((v = header(line, n, "link", &len)))
        next_link(r, v, len);
    else if (h->hop == 0 && (v = header(line, n, "x-linked-etag", &len)))
        take_tag(r->tag, v, len);
    else if (h->hop == 0 && !r->tag[0] && (v = header(line, n, "etag", &len)))
        take_tag(r->tag, v, len);
    return n;
}

static size_t on_body(char *data, size_t size, size_t count, void *arg) {
    struct dg_http *h = arg;
    size_t n = size * count;
    long status = 0;
    if (curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &status) != CURLE_OK)
        return CURL_WRITEFUNC_ERROR;
    if (status < 200 || status > 299)
        return (h->n_junk += n) > JUNK_MAX ? CURL_WRITEFUNC_ERROR : n;
    if (!h->told) {
        h->told = true;
        h->reply->status = status;
        if (h->head && !h->head(h->arg, h->reply))
            h->refused = true;
    }
    if (!h->refused && h->body && !h->body(h->arg, data, n))
        h->refused = true;
    return h->refused ? CURL_WRITEFUNC_ERROR : n;
}

static int on_progress(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
    (void)a, (void)b, (void)c, (void)d;
    struct dg_http *h = arg;
    return h->stop && atomic_load(h->stop);
}

static bool add_header(struct curl_slist **l, const char *text) {
    struct curl_slist *n = curl_slist_append(*l, text);
    if (n)
        *l = n;
    return n != NULL;
}

static enum dg_status set_up(struct dg_http *h, const struct dg_http_opts *o, struct dg_error *err) {
    char auth[TOKEN_MAX + 32];
    if (!h->curl || !add_header(&h->plain, "Accept-Encoding: identity"))
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    if (o->token && *o->token) {
        for (const char *p = o->token; *p; p++)
            if (*p <= ' ' || *p >= 0x7f)
                return DG_FAIL(err, DG_E_ARG, "HF_TOKEN holds characters that no token has; set it again, without white space");
        if (strlen(o->token) > TOKEN_MAX)
            return DG_FAIL(err, DG_E_ARG, "HF_TOKEN is longer than any token; set it again");
        snprintf(auth, sizeof auth, "Authorization: Bearer %s", o->token);
        bool ok = add_header(&h->secret, "Accept-Encoding: identity") && add_header(&h->secret, auth);
        explicit_bzero(auth, sizeof auth);
        if (!ok)
            return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    }
    if (!dg_http_origin(o->origin, h->origin, sizeof h->origin))
        return DG_FAIL(err, DG_E_ARG, "%s is no http or https address", dg_clip(o->origin, strlen(o->origin)).s);
    CURL *c = h->curl;
    bool ok = curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L) == CURLE_OK && curl_easy_setopt(c, CURLOPT_ERRORBUFFER, h->curl_error) == CURLE_OK &&
              curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
              curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L) == CURLE_OK && curl_easy_setopt(c, CURLOPT_USERAGENT, "diffgemma") == CURLE_OK &&
              curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, o->timeout_s) == CURLE_OK &&
              curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, SLOW_BYTES_PER_S) == CURLE_OK &&
              curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, o->timeout_s) == CURLE_OK &&
              curl_easy_setopt(c, CURLOPT_BUFFERSIZE, 256L * 1024) == CURLE_OK && curl_easy_setopt(c, CURLOPT_TCP_KEEPALIVE, 1L) == CURLE_OK &&
              curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header) == CURLE_OK && curl_easy_setopt(c, CURLOPT_HEADERDATA, h) == CURLE_OK &&
              curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body) == CURLE_OK && curl_easy_setopt(c, CURLOPT_WRITEDATA, h) == CURLE_OK &&
              curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L) == CURLE_OK && curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress) == CURLE_OK &&
              curl_easy_setopt(c, CURLOPT_XFERINFODATA, h) == CURLE_OK;
    return ok ? DG_OK : DG_FAIL(err, DG_E_INTERNAL, "libcurl refuses an option; a libcurl of at least 7.85 is needed");
}

enum dg_status dg_http_open(struct dg_http **out, const struct dg_http_opts *o, struct dg_error *err) {
    *out = NULL;
    pthread_once(&once, global_init);
    if (global_status != CURLE_OK)
        return DG_FAIL(err, DG_E_INTERNAL, "libcurl cannot start: %s", curl_easy_strerror(global_status));
    struct dg_http *h = dg_calloc(1, sizeof *h);
    if (!h)
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    h->curl = curl_easy_init();
    h->timeout_s = o->timeout_s;
    h->stop = o->stop;
    enum dg_status st = set_up(h, o, err);
    if (st == DG_OK)
        *out = h;
    else
        dg_http_close(h);
    return st;
}

void dg_http_close(struct dg_http *h) {
    if (!h)
        return;
    curl_easy_cleanup(h->curl);
    curl_slist_free_all(h->plain);
    curl_slist_free_all(h->secret);
    dg_free(h);
}

/* The failure of one transfer in the user's terms. */
static enum dg_status explain(struct dg_http *h, CURLcode rc, enum dg_http_fault *fault, struct dg_error *err) {
    const char *host = h->reply->host;
    if (h->refused) {
        *fault = DG_HTTP_CALLER;
        return err && err->code != DG_OK ? err->code : DG_FAIL(err, DG_E_IO, "%s: the transfer was ended", host);
    }
    *fault = DG_HTTP_RETRY;
    switch (rc) {
    case CURLE_ABORTED_BY_CALLBACK: *fault = DG_HTTP_CANCELLED; return DG_FAIL(err, DG_E_CANCELLED, "interrupted");
    case CURLE_OUT_OF_MEMORY: *fault = DG_HTTP_FATAL; return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    case CURLE_COULDNT_RESOLVE_HOST:
        *fault = DG_HTTP_SETUP;
        return DG_FAIL(err, DG_E_IO, "cannot find the address of %s: check the network, or HF_ENDPOINT", host);
    case CURLE_COULDNT_RESOLVE_PROXY:
        *fault = DG_HTTP_SETUP;
        return DG_FAIL(err, DG_E_IO, "cannot find the address of the proxy: check https_proxy and http_proxy");
    case CURLE_COULDNT_CONNECT:
        *fault = DG_HTTP_SETUP;
        return DG_FAIL(err, DG_E_IO, "cannot connect to %s: check the network, a proxy (https_proxy), or HF_ENDPOINT", host);
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_PINNEDPUBKEYNOTMATCH:
        *fault = DG_HTTP_FATAL;
        return DG_FAIL(err, DG_E_IO, "%s shows a certificate that is not trusted (%s): check the clock, the ca-certificates package and any proxy",
                       host, h->curl_error[0] ? h->curl_error : curl_easy_strerror(rc));
    case CURLE_SSL_CONNECT_ERROR:
        *fault = DG_HTTP_SETUP;
        return DG_FAIL(err, DG_E_IO, "no secure connection to %s (%s): is it an https server?", host,
                       h->curl_error[0] ? h->curl_error : curl_easy_strerror(rc));
    case CURLE_OPERATION_TIMEDOUT: return DG_FAIL(err, DG_E_IO, "%s sent next to nothing for %ld s", host, h->timeout_s);
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING: return DG_FAIL(err, DG_E_IO, "%s cut the connection", host);
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL: *fault = DG_HTTP_FATAL; return DG_FAIL(err, DG_E_IO, "%s: not an http or https address", host);
    case CURLE_WRITE_ERROR: return DG_FAIL(err, DG_E_IO, "%s sends more than an answer may hold", host);
    default: return DG_FAIL(err, DG_E_IO, "%s: %s", host, curl_easy_strerror(rc));
    }
}

/* One hop. *location: where it redirects to (borrowed from the handle), or NULL. */
static enum dg_status hop(struct dg_http *h, const char *url, const char *range, const char *origin, char **location, enum dg_http_fault *fault,
                          struct dg_error *err) {
    struct dg_http_reply *r = h->reply;
    bool own = h->secret && strcmp(origin, h->origin) == 0;
    snprintf(r->host, sizeof r->host, "%s", strstr(origin, "//") + 2);
    h->curl_error[0] = 0;
    h->told = h->refused = false;
    *location = NULL;
    if (curl_easy_setopt(h->curl, CURLOPT_URL, url) != CURLE_OK || curl_easy_setopt(h->curl, CURLOPT_RANGE, range) != CURLE_OK ||
        curl_easy_setopt(h->curl, CURLOPT_HTTPHEADER, own ? h->secret : h->plain) != CURLE_OK) {
        *fault = DG_HTTP_FATAL;
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    }
    CURLcode rc = curl_easy_perform(h->curl);
    curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &r->status);
    if (rc == CURLE_OK && !h->told && r->status >= 200 && r->status <= 299 && h->head && !h->head(h->arg, r)) {
        h->refused = true; /* an empty body: the head was not shown yet */
        rc = CURLE_WRITE_ERROR;
    }
    if (rc != CURLE_OK)
        return explain(h, rc, fault, err);
    if (r->status >= 300 && r->status <= 399)
        curl_easy_getinfo(h->curl, CURLINFO_REDIRECT_URL, location);
    return DG_OK;
}

enum dg_status dg_http_get(struct dg_http *h, const char *url, int64_t first, int64_t last, dg_http_head_fn *head, dg_http_body_fn *body,
                           void *arg, struct dg_http_reply *reply, enum dg_http_fault *fault, struct dg_error *err) {
    char now[DG_HTTP_URL_MAX], range[64], start[512], origin[512];
    memset(reply, 0, sizeof *reply);
    reply->length = reply->first = reply->last = reply->total = reply->retry_after_s = -1;
    h->reply = reply;
    h->head = head;
    h->body = body;
    h->arg = arg;
    h->n_headers = h->n_junk = 0;
    *fault = DG_HTTP_FATAL;
    if (snprintf(now, sizeof now, "%s", url) >= (int)sizeof now || !dg_http_origin(now, start, sizeof start))
        return DG_FAIL(err, DG_E_ARG, "%s is no http or https address", dg_clip(url, strcspn(url, "?")).s);
    if (first >= 0)
        snprintf(range, sizeof range, "%lld-%lld", (long long)first, (long long)last);
    snprintf(origin, sizeof origin, "%s", start);
    for (h->hop = 0; h->hop <= DG_HTTP_REDIRECTS_MAX; h->hop++) {
        char *location;
        DG_TRY(hop(h, now, first >= 0 ? range : NULL, origin, &location, fault, err));
        *fault = DG_HTTP_FINE;
        if (!location)
            return DG_OK;
        *fault = DG_HTTP_FATAL;
        bool secure = strncmp(origin, "https:", 6) == 0;
        if (snprintf(now, sizeof now, "%s", location) >= (int)sizeof now || !dg_http_origin(now, origin, sizeof origin))
            return DG_FAIL(err, DG_E_IO, "%s redirects to something that is no http or https address", reply->host);
        if (secure && strncmp(origin, "https:", 6) != 0)
            return DG_FAIL(err, DG_E_IO, "%s redirects from https to plain http, which is not followed", reply->host);
        reply->redirected = strcmp(origin, start) != 0;
    }
    return DG_FAIL(err, DG_E_IO, "%s redirects more than %d times", reply->host, DG_HTTP_REDIRECTS_MAX);
}
