/* A hub on loopback that misbehaves on request, for tests/cases/download.sh.
 *
 *   hub_server make DIR             writes the folders it serves: DIR/ckpt, DIR/pack, DIR/packbad, DIR/packover
 *   hub_server serve DIR PORTS LOG  serves them; PORTS gets "hub-port cdn-port", LOG a line per request: port, path, range, token
 *
 * A repository is named kind/behaviour: t/ serves the checkpoint, p/ the pack, x/ the damaged pack; what the behaviours do is in the table
 * below. Each repository counts its requests, so that a behaviour can pass. */
#include "support/mkckpt.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define DAMAGED_BYTE 100
#define TOKEN "Bearer hf_testtoken"
#define COMMIT_A "00112233445566778899aabbccddeeff00112233"
#define COMMIT_B "ffeeddccbbaa99887766554433221100ffeeddcc"

struct file {
    char name[128];
    char hash[65];
    bool lfs;
    uint8_t *data;
    size_t n;
};

struct folder {
    struct file f[32];
    int n;
};

static struct folder ckpt, pack, packbad, packover;
static int hub_port, cdn_port;
static FILE *request_log;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct repo {
    char name[64];
    int lists, weights, damaged; /* requests so far */
} repos[256];

static struct repo *repo_of(const char *name) {
    for (size_t i = 0; i < sizeof repos / sizeof *repos; i++) {
        if (!repos[i].name[0])
            snprintf(repos[i].name, sizeof repos[i].name, "%s", name);
        if (!strcmp(repos[i].name, name))
            return &repos[i];
    }
    abort();
}

/* ---- what is served ---- */

static void hash_file(struct file *f) {
    unsigned char d[EVP_MAX_MD_SIZE];
    unsigned n;
    char head[64];
    int k = snprintf(head, sizeof head, "blob %zu", f->n) + 1;
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    if (!c || !EVP_DigestInit_ex(c, f->lfs ? EVP_sha256() : EVP_sha1(), NULL) || (!f->lfs && !EVP_DigestUpdate(c, head, (size_t)k)) ||
        !EVP_DigestUpdate(c, f->data, f->n) || !EVP_DigestFinal_ex(c, d, &n))
        abort();
    EVP_MD_CTX_free(c);
    for (unsigned i = 0; i < n; i++)
        snprintf(f->hash + 2 * i, 3, "%02x", d[i]);
}

static bool ends(const char *s, const char *t) { return strlen(s) >= strlen(t) && !strcmp(s + strlen(s) - strlen(t), t); }

static void load(struct folder *o, const char *root, const char *name) {
    char dir[4096], path[8192];
    snprintf(dir, sizeof dir, "%s/%s", root, name);
    DIR *d = opendir(dir);
    if (!d) {
        perror(dir);
        exit(1);
    }
    for (struct dirent *e; (e = readdir(d)) && o->n < 32;) {
        if (e->d_name[0] == '.')
            continue;
        struct file *f = &o->f[o->n++];
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        snprintf(f->name, sizeof f->name, "%.100s", e->d_name);
        f->data = (uint8_t *)mk_slurp(path, &f->n);
        f->lfs = !ends(f->name, ".json") || !strcmp(f->name, "tokenizer.json");
        hash_file(f);
    }
    closedir(d);
}

static void make(const char *root) {
    static const struct mk_shape shape = {.vocab = 6000, .hidden = 512, .layers = 2, .heads = 8, .kv = 4, .hd = 64, .full_kv = 2, .full_hd = 64,
                                          .inter = 512, .experts = 4, .topk = 2, .moe = 128, .canvas = 16, .window = 64, .full = 1u << 1};
    struct mk_ckpt c;
    char dir[4096];
    mk_mkdir(root, "ckpt");
    snprintf(dir, sizeof dir, "%s/ckpt", root);
    mk_build(&c, &shape, "BF16", true, 7);
    mk_write(&c, dir, 3);
    static const char tok[] = "{\"version\": \"1.0\"}\n", text[] = "decoy, not to be fetched\n";
    mk_put(dir, "tokenizer.json", tok, sizeof tok - 1);
    mk_put(dir, "README.md", text, sizeof text - 1);
    mk_put(dir, "model-q4.gguf", text, sizeof text - 1);
    mk_put(dir, "consolidated.safetensors", text, sizeof text - 1);
    /* a sound pack, one with a tensor beyond its blob, one that lies over a model which nobody has */
    static const char *const packs[] = {"pack", "packbad", "packover"};
    for (int i = 0; i < 3; i++) {
        static uint8_t blob[200000];
        static const char base[] = "\"base_model\": {\"repo\": \"no/body\", \"revision\": \"r1\"}, \"external_files\": {\"s\": {\"role\": "
                                   "\"hf_safetensors\", \"path\": \"s.safetensors\", \"expected_size\": 1000}}, ";
        char manifest[1024];
        for (size_t k = 0; k < sizeof blob; k++)
            blob[k] = (uint8_t)(k * 2654435761u >> 13);
        snprintf(manifest, sizeof manifest,
                 "{\"version\": %d, \"profile\": \"q4\", \"source_model\": \"t\", \"blob_file\": \"model.dgq.bin\", %s\"tensors\": [{\"name\": "
                 "\"a\", \"kind\": \"raw\", \"dtype\": \"BF16\", \"shape\": [100], \"offset\": 0, \"byte_len\": 200%s}, {\"name\": \"b\", "
                 "\"kind\": \"raw\", \"dtype\": \"BF16\", \"shape\": [1000], \"offset\": %zu, \"byte_len\": 2000%s}]}\n",
                 i == 2 ? 3 : 1, i == 2 ? base : "", i == 2 ? ", \"source\": {\"kind\": \"external\", \"file\": \"s\", \"offset\": 800}" : "",
                 (sizeof blob - 2000) / 64 * 64 + (i == 1 ? 64 : 0), i == 2 ? ", \"source\": {\"kind\": \"local\", \"local_offset\": 128}" : "");
        mk_mkdir(root, packs[i]);
        snprintf(dir, sizeof dir, "%s/%s", root, packs[i]);
        mk_put(dir, "config.json", c.config, strlen(c.config));
        mk_put(dir, "tokenizer.json", tok, sizeof tok - 1);
        mk_put(dir, "model.dgq.json", manifest, strlen(manifest));
        mk_put(dir, "model.dgq.bin", blob, sizeof blob);
    }
    mk_free(&c);
}

/* ---- one connection ---- */

struct conn {
    int fd, port;
    char path[2048], range[64];
    bool has_range, token;
    long long first, last;
};

static bool put(struct conn *c, const void *data, size_t n) {
    for (const char *p = data; n;) {
        ssize_t k = send(c->fd, p, n, MSG_NOSIGNAL);
        if (k <= 0)
            return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

static bool say(struct conn *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool say(struct conn *c, const char *fmt, ...) {
    char text[8192];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return put(c, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

static bool status(struct conn *c, const char *line, const char *headers) {
    const char *body = "<html><body>an error page of some kind</body></html>";
    return say(c, "HTTP/1.1 %s\r\nContent-Type: text/html\r\nContent-Length: %zu\r\n%s\r\n%s", line, strlen(body), headers, body);
}

/* How to send a file. */
struct manner {
    long long shift;  /* added to the Content-Range */
    bool no_range, no_length, gzip, html;
    long long cut;    /* close after so many bytes, -1 = never */
    long long extra;  /* bytes too many, announced too */
    bool hide_extra;  /* not announced */
    int pause_us;     /* after each 64 KiB */
    bool drip, damage;
    const char *etag, *linked;
};

static bool send_file(struct conn *c, const struct file *f, const struct manner *m) {
    long long a = 0, b = (long long)f->n - 1, sent = 0;
    bool part = c->has_range && !m->no_range;
    if (part) {
        a = c->first;
        b = c->last < b ? c->last : b;
        if (a > b) {
            char h[128];
            snprintf(h, sizeof h, "Content-Range: bytes */%zu\r\n", f->n);
            return status(c, "416 Range Not Satisfiable", h);
        }
    }
    if (!say(c, "HTTP/1.1 %s\r\nContent-Type: %s\r\nAccept-Ranges: bytes\r\n", part ? "206 Partial Content" : "200 OK",
             m->html ? "text/html; charset=utf-8" : "application/octet-stream"))
        return false;
    if (part)
        say(c, "Content-Range: bytes %lld-%lld/%zu\r\n", a + m->shift, b + m->shift, f->n);
    if (!m->no_length)
        say(c, "Content-Length: %lld\r\n", b - a + 1 + (m->hide_extra ? 0 : m->extra));
    if (m->gzip)
        say(c, "Content-Encoding: gzip\r\n");
    if (m->linked)
        say(c, "X-Linked-Etag: \"%s\"\r\n", m->linked);
    say(c, "ETag: \"%s\"\r\n%s\r\n", m->etag ? m->etag : f->hash, m->no_length ? "Connection: close\r\n" : "");
    while (a <= b) {
        uint8_t block[65536];
        size_t n = (size_t)(b - a + 1) < sizeof block ? (size_t)(b - a + 1) : sizeof block;
        if (m->drip)
            n = 1;
        if (m->cut >= 0 && sent + (long long)n > m->cut)
            n = (size_t)(m->cut - sent);
        memcpy(block, f->data + a, n);
        if (m->damage && a <= DAMAGED_BYTE && a + (long long)n > DAMAGED_BYTE)
            block[DAMAGED_BYTE - a] ^= 1;
        if (!put(c, block, n))
            return false;
        a += (long long)n;
        sent += (long long)n;
        if (m->cut >= 0 && sent >= m->cut)
            return false;
        if (m->drip)
            usleep(100000);
        else if (m->pause_us)
            usleep((useconds_t)m->pause_us);
    }
    for (long long i = 0; i < m->extra; i++)
        if (!put(c, "x", 1))
            return false;
    return !m->no_length;
}

/* ---- the hub ---- */

static bool is(const char *how, const char *name) { return !strcmp(how, name); }

static bool send_text(struct conn *c, const char *text, size_t n) {
    return say(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", n) && put(c, text, n);
}

static bool send_list(struct conn *c, const char *how, struct folder *o, int nth) {
    static char text[65536];
    static pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;
    size_t n = 0;
    if (is(how, "list401"))
        return status(c, "401 Unauthorized", "X-Error-Code: RepoNotFound\r\n");
    if (is(how, "list403"))
        return status(c, "403 Forbidden", "X-Error-Code: GatedRepo\r\n");
    if (is(how, "list404"))
        return status(c, "404 Not Found", "X-Error-Code: RepoNotFound\r\n");
    if (is(how, "norev"))
        return status(c, "404 Not Found", "X-Error-Code: RevisionNotFound\r\n");
    if (is(how, "list429") && nth < 1)
        return status(c, "429 Too Many Requests", "Retry-After: 1\r\n");
    if (is(how, "listlimit") && nth < 1)
        return status(c, "429 Too Many Requests", "RateLimit: \"api\";r=0;t=1\r\n");
    if (is(how, "list503"))
        return status(c, "503 Service Unavailable", "");
    if (is(how, "listhtml"))
        return status(c, "200 OK", "");
    if (is(how, "listjunk"))
        return send_text(c, "{\"sha\": [", 9);
    if (is(how, "needtoken") && !c->token)
        return status(c, "401 Unauthorized", "X-Error-Code: RepoNotFound\r\n");
    if (is(how, "listendless") || is(how, "headendless")) {
        bool head = is(how, "headendless");
        if (!say(c, "HTTP/1.1 200 OK\r\n%s", head ? "" : "Connection: close\r\n\r\n[0"))
            return false;
        while (say(c, "%s", head ? "X-More: of the same, without end\r\n" : ",000000000000000000000000000000000000000000000000000000000000000000000"))
            ;
        return false;
    }
    pthread_mutex_lock(&own);
    n = (size_t)snprintf(text, sizeof text, "{\"id\": \"t/t\", \"sha\": \"%s\", \"siblings\": [", is(how, "moved") && nth > 0 ? COMMIT_B : COMMIT_A);
    bool comma = false;
    for (int i = 0; i < o->n; i++) {
        const struct file *f = &o->f[i];
        unsigned long long size = f->n;
        if ((is(how, "gguf") && !ends(f->name, ".gguf") && !ends(f->name, "config.json")) || (is(how, "noconfig") && !strcmp(f->name, "config.json")))
            continue;
        if (is(how, "listsize") && ends(f->name, ".safetensors"))
            size += 5;
        if (is(how, "big") && ends(f->name, ".safetensors"))
            size = 1ull << 42;
        n += (size_t)snprintf(text + n, sizeof text - n, "%s{\"rfilename\": \"%s\"", comma ? ", " : "", f->name);
        comma = true;
        if (!is(how, "nosize"))
            n += (size_t)snprintf(text + n, sizeof text - n, ", \"size\": %llu, \"blobId\": \"%s\"", size, f->lfs ? COMMIT_A : f->hash);
        if (f->lfs && !is(how, "nosize"))
            n += (size_t)snprintf(text + n, sizeof text - n, ", \"lfs\": {\"sha256\": \"%s\", \"size\": %llu, \"pointerSize\": 134}", f->hash, size);
        n += (size_t)snprintf(text + n, sizeof text - n, "}");
    }
    if (is(how, "evil"))
        for (int i = 0; i < 4; i++) {
            static const char *const names[] = {"../../evil.safetensors", "/tmp/evil.safetensors", ".evil.safetensors", "model\\n.safetensors"};
            n += (size_t)snprintf(text + n, sizeof text - n, ", {\"rfilename\": \"%s\", \"size\": 4, \"blobId\": \"" COMMIT_A "\"}", names[i]);
        }
    if (is(how, "dup"))
        n += (size_t)snprintf(text + n, sizeof text - n, ", {\"rfilename\": \"config.json\", \"size\": 4, \"blobId\": \"" COMMIT_A "\"}");
    n += (size_t)snprintf(text + n, sizeof text - n, "]}");
    bool keep = send_text(c, text, n);
    pthread_mutex_unlock(&own);
    return keep;
}

/* nth: which request for weights of this repository it is. */
static bool send_resolved(struct conn *c, const char *repo, const char *how, const struct file *f, int nth) {
    bool w = ends(f->name, ".safetensors") || ends(f->name, ".bin");
    struct manner m = {.cut = -1};
    char header[512];
    bool cdn = c->port == cdn_port;
    if (is(how, "gated"))
        return status(c, "403 Forbidden", "X-Error-Code: GatedRepo\r\n");
    if (is(how, "needtoken") && !cdn && !c->token)
        return status(c, "401 Unauthorized", "");
    m.damage = is(how, "badsmall") && !strcmp(f->name, "generation_config.json");
    if (is(how, "renamed")) {
        snprintf(header, sizeof header, "Location: /t/ok/resolve/main/%s\r\n", f->name);
        return status(c, "307 Temporary Redirect", header);
    }
    if (!w)
        return send_file(c, f, &m);
    if (!cdn && (is(how, "redirect") || is(how, "cdn403") || is(how, "needtoken"))) {
        snprintf(header, sizeof header, "Location: http://127.0.0.1:%d/cdn/%s/%s?sig=s3cr3t\r\nX-Linked-Etag: \"%s\"\r\nX-Linked-Size: %zu\r\n",
                 cdn_port, repo, f->name, f->hash, f->n);
        return status(c, "302 Found", header);
    }
    if (cdn)
        m.etag = nth % 2 ? "one-node" : "another-node"; /* as a delivery network may */
    if (is(how, "cdn403") && nth <= 4)
        return status(c, "403 Forbidden", "");
    if (is(how, "loop")) {
        snprintf(header, sizeof header, "Location: %.400s\r\n", c->path);
        return status(c, "302 Found", header);
    }
    if (is(how, "file404"))
        return status(c, "404 Not Found", "X-Error-Code: EntryNotFound\r\n");
    if (is(how, "r429") && nth < 2)
        return status(c, "429 Too Many Requests", "Retry-After: 1\r\n");
    if ((is(how, "r503") && nth < 3) || is(how, "r503x"))
        return status(c, "503 Service Unavailable", "");
    if (is(how, "r416"))
        return status(c, "416 Range Not Satisfiable", "");
    if (is(how, "html"))
        return status(c, "200 OK", "");
    m.cut = is(how, "cut")                                             ? 150000
            : is(how, "cut3") && nth < 3                               ? 1000
            : is(how, "cut0")                                          ? 0
            : is(how, "wholecut") && c->has_range == 0 && nth < 6      ? 700000
                                                                       : -1;
    m.no_range = is(how, "whole") || is(how, "wholecut") || is(how, "wholex");
    if (is(how, "wholex"))
        m.cut = 700000;
    m.shift = (is(how, "shift") && nth < 2) || is(how, "shiftx") ? 1000 : 0;
    m.extra = is(how, "long") || is(how, "longhidden") ? 10 : 0;
    m.hide_extra = m.no_length = is(how, "longhidden");
    if (is(how, "nolength") || (is(how, "nolengthcut") && nth < 3))
        m.no_length = true;
    if (is(how, "nolengthcut") && nth < 3)
        m.cut = 5000;
    m.drip = is(how, "drip") || (is(how, "drip1") && nth < 1);
    m.pause_us = is(how, "slow") ? 15000 : 0;
    m.gzip = is(how, "gzip");
    m.etag = m.etag ? m.etag : is(how, "etag") ? (nth < 5 ? "v1-x" : "v2-x") : is(how, "etagx") ? (nth % 2 ? "v1-x" : "v2-x") : NULL;
    m.linked = is(how, "linked") ? "0000000000000000000000000000000000000000000000000000000000000000" : NULL;
    m.damage = is(how, "bad");
    if (is(how, "bad1") && (!c->has_range || c->first <= DAMAGED_BYTE)) {
        pthread_mutex_lock(&lock);
        m.damage = repo_of(repo)->damaged++ < 1;
        pthread_mutex_unlock(&lock);
    }
    return send_file(c, f, &m);
}

/* Splits "t/how/..." into the repository and its behaviour. */
static const char *split_repo(const char *p, char repo[64], char how[64]) {
    const char *s = strchr(p, '/'), *e = s ? strchr(s + 1, '/') : NULL;
    if (!e || e - p >= 64)
        return NULL;
    snprintf(repo, 64, "%.*s", (int)(e - p), p);
    snprintf(how, 64, "%.*s", (int)(e - s - 1), s + 1);
    char *tail = strrchr(how, '-'); /* cut-2: a second repository with the behaviour "cut" */
    if (tail)
        *tail = 0;
    return e + 1;
}

static bool answer(struct conn *c) {
    char repo[64], how[64];
    const char *api = "/api/models/", *cdn = "/cdn/";
    bool list = !strncmp(c->path, api, strlen(api)), from_cdn = !strncmp(c->path, cdn, strlen(cdn));
    const char *rest = split_repo(c->path + (list ? strlen(api) : from_cdn ? strlen(cdn) : 1), repo, how);
    if (!rest)
        return status(c, "404 Not Found", "");
    struct folder *o = repo[0] == 'p' ? &pack : repo[0] == 'x' ? &packbad : repo[0] == 'o' ? &packover : &ckpt;
    if (list) {
        pthread_mutex_lock(&lock);
        int nth = repo_of(repo)->lists++;
        pthread_mutex_unlock(&lock);
        return send_list(c, how, o, nth);
    }
    if (!from_cdn) { /* resolve/REV/FILE */
        rest = strchr(rest, '/');
        rest = rest ? strchr(rest + 1, '/') : NULL;
        rest = rest ? rest + 1 : "";
    }
    size_t n = strcspn(rest, "?");
    for (int i = 0; i < o->n; i++)
        if (strlen(o->f[i].name) == n && !memcmp(o->f[i].name, rest, n)) {
            pthread_mutex_lock(&lock);
            int nth = ends(o->f[i].name, ".json") ? 0 : repo_of(repo)->weights++;
            pthread_mutex_unlock(&lock);
            return send_resolved(c, repo, how, &o->f[i], nth);
        }
    return status(c, "404 Not Found", "X-Error-Code: EntryNotFound\r\n");
}

static bool read_request(struct conn *c) {
    char head[8192];
    size_t n = 0;
    while (n < sizeof head - 1) {
        ssize_t k = recv(c->fd, head + n, 1, 0);
        if (k <= 0)
            return false;
        n++;
        if (head[0] == 0x16) /* a TLS greeting */
            return status(c, "400 Bad Request", "Connection: close\r\n") && false;
        if (n >= 4 && !memcmp(head + n - 4, "\r\n\r\n", 4))
            break;
    }
    head[n] = 0;
    if (sscanf(head, "GET %2047s", c->path) != 1)
        return false;
    const char *r = strstr(head, "\r\nRange: bytes="), *t = strcasestr(head, "\r\nAuthorization: ");
    c->has_range = r && sscanf(r + 15, "%lld-%lld", &c->first, &c->last) == 2;
    c->token = t && !strncmp(t + 17, TOKEN "\r\n", strlen(TOKEN) + 2);
    pthread_mutex_lock(&lock);
    fprintf(request_log, "%s %s %s", c->port == cdn_port ? "cdn" : "hub", c->path, c->has_range ? "range" : "whole");
    fprintf(request_log, " %s\n", c->token ? "token" : t ? "other-token" : "no-token");
    fflush(request_log);
    pthread_mutex_unlock(&lock);
    return true;
}

static void *serve(void *arg) {
    struct conn *c = arg;
    while (read_request(c) && answer(c))
        ;
    shutdown(c->fd, SHUT_RDWR);
    close(c->fd);
    free(c);
    return NULL;
}

static int listen_on_loopback(int *port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 128) || getsockname(fd, (struct sockaddr *)&a, &n)) {
        perror("hub_server: loopback");
        exit(1);
    }
    *port = ntohs(a.sin_port);
    return fd;
}

struct door {
    int fd, port;
};

static void *accept_all(void *arg) {
    struct door *o = arg;
    for (;;) {
        int fd = accept(o->fd, NULL, NULL);
        if (fd < 0)
            continue;
        struct conn *c = calloc(1, sizeof *c);
        pthread_t t;
        if (!c)
            abort();
        c->fd = fd;
        c->port = o->port;
        if (pthread_create(&t, NULL, serve, c)) {
            close(fd);
            free(c);
        } else
            pthread_detach(t);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "make")) {
        make(argv[2]);
        return 0;
    }
    if (argc != 5 || strcmp(argv[1], "serve")) {
        fprintf(stderr, "usage: hub_server make DIR | serve DIR PORTS LOG\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    load(&ckpt, argv[2], "ckpt");
    load(&pack, argv[2], "pack");
    load(&packbad, argv[2], "packbad");
    load(&packover, argv[2], "packover");
    request_log = fopen(argv[4], "w");
    struct door hub, cdn;
    hub.fd = listen_on_loopback(&hub_port);
    cdn.fd = listen_on_loopback(&cdn_port);
    hub.port = hub_port;
    cdn.port = cdn_port;
    FILE *f = fopen(argv[3], "w");
    if (!f || !request_log) {
        perror("hub_server");
        return 1;
    }
    fprintf(f, "%d %d\n", hub_port, cdn_port);
    fclose(f);
    pthread_t t;
    if (pthread_create(&t, NULL, accept_all, &cdn))
        return 1;
    accept_all(&hub);
    return 0;
}
