# diffgemma download against a hub on loopback that behaves, and then does not (field failure E10). Every failure must be one clear line, a status that is not 0,
# and nothing that opens as a model; whatever was fetched must serve the next call; the token must go to the hub and nowhere else.
. "$DG_ROOT/tests/support/hub.sh"

# what works
succeeds "a checkpoint arrives byte for byte, decoys are left alone" t/ok
opens "$dir" && ok "and opens" || bad "does not open"
get t/ok
[ $status -eq 0 ] && grep -q 'already complete' "$work/log" && ok "a second call finds it complete" || bad "second call: status $status"
n=$(grep -c '/t/ok/resolve/' "$work/requests")
get t/ok --force
[ $status -eq 0 ] && same "$dir" && [ "$(grep -c '/t/ok/resolve/' "$work/requests")" -ge $((2 * n)) ] && [ ! -e "$dir.part-old" ] &&
    ok "--force fetches it again" || bad "--force: status $status"
echo precious >"$dir/thesis.txt"
get t/ok --force
[ $status -eq 2 ] && grep -q 'thesis.txt' "$work/err" && same "$dir" 2>/dev/null
[ $status -eq 2 ] && [ -s "$dir/thesis.txt" ] && ok "--force spares a folder with other files" || bad "--force over other files: status $status"
mkdir -p "$work/out/t_ok-9" && echo x >"$work/out/t_ok-9/thesis.txt"
get t/ok-9
[ $status -eq 2 ] && grep -q 'not a complete copy' "$work/err" && ok "a folder in the way is refused" || bad "folder in the way: status $status"
get p/ok
[ $status -eq 0 ] && cmp -s "$dir/model.dgq.bin" "$work/data/pack/model.dgq.bin" && cmp -s "$dir/model.dgq.json" "$work/data/pack/model.dgq.json" &&
    ok "a pack arrives" || bad "pack: status $status"
get o/ok
[ $status -eq 0 ] && cmp -s "$dir/model.dgq.bin" "$work/data/packover/model.dgq.bin" && ok "a layered pack arrives without its base" || bad "layered pack: status $status"
"$dg" verify -m "$dir" >/dev/null 2>"$work/err"
grep -q 'run: hf download no/body --revision r1' "$work/err" && ok "which is then asked for" || bad "the base of a layered pack"
fails "a pack that is damaged at its source" 'arrived as the hub lists it, but cannot be read.*b ends at byte' x/ok
succeeds "one job" t/ok-1 --jobs 1
succeeds "32 jobs" t/ok-2 --jobs 32
succeeds "a renamed repository" t/renamed
succeeds "answers without a length" t/nolength
succeeds "names that lead out of the folder are ignored" t/evil
[ -z "$(find "$work" /tmp/evil.safetensors -name '*evil*' 2>/dev/null | grep -v t_evil)" ] && ok "nothing is written elsewhere" || bad "a file escaped"
used=$(grep -c 'range' "$work/requests")
[ "$used" -gt 30 ] && ok "files come in ranges ($used range requests so far)" || bad "only $used range requests"

# the token
HF_TOKEN=hf_testtoken
export HF_TOKEN
succeeds "the token opens what needs it, through a redirect" t/needtoken
bare=$(grep '^hub /t/needtoken\|^hub /api/models/t/needtoken' "$work/requests" | grep -vc ' token$')
leak=$(grep '^cdn' "$work/requests" | grep -vc 'no-token$')
[ "$bare" -eq 0 ] && [ "$leak" -eq 0 ] && [ "$(grep -c '^cdn /cdn/t/needtoken' "$work/requests")" -gt 3 ] &&
    ok "the token goes to the hub only, not where it redirects to" || bad "token: $bare requests without, $leak leaks"
get t/gated
if grep -rq hf_testtoken "$work/err" "$work/log" "$work/out"; then bad "the token is in a message or file"; else ok "the token is in no message and no file"; fi
HF_TOKEN='hf_test
X-Evil: 1'
get t/ok-3
[ $status -eq 2 ] && ! grep -q 'Evil' "$work/err" && ok "a token with a line break is refused" || bad "token with a line break: status $status"
unset HF_TOKEN
fails "without the token" 'HF_TOKEN' t/needtoken-2
fails "a gated repository" 'accept the terms' t/gated

# what passes
succeeds "a redirect whose delivery network changes its ETags" t/redirect
[ "$(grep -rc 's3cr3t' "$work/err" "$work/log" | grep -vc ':0')" -eq 0 ] && ok "signed addresses are in no message" || bad "a signed address was printed"
succeeds "a signed address that ran out" t/cdn403
succeeds "connections cut after 150 KB, always" t/cut
succeeds "connections cut at the start, three times" t/cut3
succeeds "bodies that end early without a length" t/nolengthcut
succeeds "a wrong Content-Range, twice" t/shift
succeeds "a server that ignores ranges" t/whole
grep -q 'one stream' "$work/err" && ok "and that is said" || bad "ignored ranges are not mentioned"
succeeds "a server that ignores ranges and cuts" t/wholecut
succeeds "429 with Retry-After" t/r429
grep -q 'again in 1.0 s' "$work/err" && ok "Retry-After is kept" || bad "Retry-After is not kept"
succeeds "429 for the file list" t/list429
succeeds "a rate limit without Retry-After" t/listlimit
grep -q 'again in 1.0 s' "$work/err" && ok "the RateLimit header is kept" || bad "RateLimit is not kept"
succeeds "503 three times" t/r503
succeeds "one connection that drips" t/drip1 --timeout 1
succeeds "an ETag that changes once" t/etag
succeeds "a wrong byte, once" t/bad1
grep -q 'wrong hash; fetching it again' "$work/err" && ok "and it was noticed" || bad "the wrong byte was not noticed"

# what does not pass
fails "a wrong byte, always" 'wrong SHA-256, twice' t/bad
wrong=$(sed -n 's/^diffgemma download: \(.*\) has the wrong SHA-256, twice.*/\1/p' "$work/err")
[ -n "$wrong" ] && [ ! -e "$dir.part/$wrong.part" ] && ok "the wrong file is gone" || bad "the wrong file is still there"
fails "a wrong small file" 'wrong hash, twice' t/badsmall
fails "an ETag that keeps changing" 'ETag differs' t/etagx
fails "another SHA-256 than listed" 'ETag differs' t/linked
fails "a size that is not the listed one" 'in the list' t/listsize
fails "a web page instead of weights" 'web page' t/html
fails "a web page instead of a list" 'web page' t/listhtml
fails "compressed weights" 'compressed' t/gzip
fails "a wrong Content-Range, always" 'another range' t/shiftx --retries 1
fails "more bytes than asked for" 'for a range of' t/long --retries 1
fails "more bytes than asked for, not announced" 'more of .* than asked for' t/longhidden --retries 1
fails "416, always" 'not the listed one' t/r416
fails "503, always" 'status 503' t/r503x --retries 2
fails "a cut before the first byte, always" 'cut the connection' t/cut0 --retries 2
fails "one stream, cut each time" 'given up' t/wholex --retries 2
fails "a drip" 'next to nothing' t/drip --timeout 1 --retries 1 --jobs 16
fails "redirects in a circle" 'redirects more than' t/loop
fails "a listed file that is not there" 'is listed, but' t/file404
fails "401" 'HF_TOKEN' t/list401
fails "403, gated" 'is gated' t/list403
fails "404" 'check the spelling' t/list404
fails "no such revision" 'no revision v9' t/norev --revision v9
fails "503 for the list" 'status 503' t/list503 --retries 1
fails "a list that is no JSON" 'does not answer like a hub' t/listjunk
fails "a list without sizes" 'no size and hash' t/nosize
fails "a list that names a file twice" 'twice' t/dup
fails "a list without end" 'longer than' t/listendless
fails "headers without end" '.' t/headendless --retries 0
fails "a repository of GGUF files" 'holds GGUF' t/gguf
fails "a repository without config.json" 'has no config.json' t/noconfig
fails "not enough room" 'not enough room' t/big
fails "a path instead of a repository" 'no repo id' ../etc
fails "a revision that leads elsewhere" 'give a branch' t/ok-4 --revision ../../x
HF_ENDPOINT=https://127.0.0.1:$port fails "no TLS on the other side" 'secure connection' t/ok-5
HF_ENDPOINT=http://no-such-host.invalid fails "a name that does not resolve" 'cannot find the address' t/ok-6
HF_ENDPOINT=http://127.0.0.1:1 fails "a closed port" 'cannot connect' t/ok-7
HF_ENDPOINT=ftp://127.0.0.1 fails "an endpoint that is no web address" 'HF_ENDPOINT' t/ok-8
[ -z "$(find "$work/out" -maxdepth 1 -name 't_list40*')" ] && ok "a failed list leaves no folder" || bad "a failed list leaves a folder"
(
    trap '' XFSZ
    ulimit -f 4096
    get t/ok-20
    echo $status >"$work/status"
)
grep -q 'no room left' "$work/err" && [ "$(cat "$work/status")" -eq 1 ] && [ ! -e "$work/out/t_ok-20" ] && ok "a disk that is full half-way" || bad "disk full"
succeeds "and goes on when there is room" t/ok-20

# the cache
hub=$HOME/.cache/huggingface/hub/models--t--ok-30
cached() { "$dg" download "$@" --chunk 1 >"$work/log" 2>"$work/err"; }
snap=$hub/snapshots/00112233445566778899aabbccddeeff00112233
cached t/ok-30 && same "$snap" && [ "$(cat "$hub/refs/main")" = 00112233445566778899aabbccddeeff00112233 ] &&
    ok "without -o it goes into the cache" || bad "cache"
"$dg" summary -m t/ok-30 >"$work/log" 2>"$work/err" && ok "where -m finds it" || bad "-m does not find it"
cached t/ok-30 && grep -q 'already complete' "$work/log" && ok "and a second call does" || bad "second call in the cache"
n=$(wc -l <"$work/requests")
cached t/ok-30 --revision 00112233445566778899aabbccddeeff00112233 && grep -q 'already complete' "$work/log" && [ "$(wc -l <"$work/requests")" -eq "$n" ] &&
    ok "a commit that is there needs no network" || bad "pinned commit"
# as another program's half-done snapshot looks: links into blobs, one file missing
hub=$HOME/.cache/huggingface/hub/models--t--ok-31
snap=$hub/snapshots/00112233445566778899aabbccddeeff00112233
mkdir -p "$snap" "$hub/blobs"
for f in config.json model-00001-of-00003.safetensors README.md; do
    h=$(sha256sum <"$work/data/ckpt/$f" | cut -c 1-64)
    cp "$work/data/ckpt/$f" "$hub/blobs/$h"
    ln -s "../../blobs/$h" "$snap/$f"
done
if cached t/ok-31 && opens t/ok-31 && [ -L "$snap/README.md" ] && [ -e "$snap/README.md" ] && [ -L "$snap/model-00001-of-00003.safetensors" ] &&
    cmp -s "$snap/model-00001-of-00003.safetensors" "$work/data/ckpt/model-00001-of-00003.safetensors" &&
    ! grep -q '/t/ok-31/resolve/.*model-00001' "$work/requests" && [ "$(ls -A "$hub/snapshots" | wc -l)" -eq 1 ]; then
    ok "a half-done snapshot of another program is completed, not fetched again"
else
    bad "half-done snapshot"
fi
"$dg" download t/slow-32 --chunk 1 --jobs 2 >"$work/log" 2>"$work/err" &
pid=$!
until_more 3 fetched slow-32
kill -9 $pid
wait $pid 2>/dev/null
if opens t/slow-32; then bad "a partial download in the cache was chosen"; else ok "a partial download in the cache is not chosen"; fi
cached t/slow-32 && opens t/slow-32 && ok "and is completed" || bad "cache resume"
"$dg" download t/moved --chunk 1 --jobs 1 >"$work/log" 2>"$work/err"
"$dg" download t/moved --chunk 1 --jobs 1 >"$work/log" 2>"$work/err" && [ "$(cat "$HOME/.cache/huggingface/hub/models--t--moved/refs/main")" = \
    ffeeddccbbaa99887766554433221100ffeeddcc ] && ok "a branch that moved on is followed" || bad "moved branch"

# memory: the model is 17 MB here, so growth with its size would show against the same run over a 200 KB pack
peak() { "$dg" download "$@" >/dev/null 2>&1 & p=$!; m=0; while k=$(sed -n 's/VmHWM:[[:space:]]*\([0-9]*\) kB/\1/p' /proc/$p/status 2>/dev/null) && [ -n "$k" ]; do m=$k; sleep 0.02; done; wait $p; echo "$m"; }
case $DG_BUILD in
*asan* | *tsan*) ok "peak memory # SKIP sanitizers take their own" ;;
*)
    m=$(peak t/slow-40 -o "$work/out/peak" --jobs 8 --chunk 1)
    [ "$m" -gt 0 ] && [ "$m" -lt 49152 ] && ok "peak memory with 8 jobs: $((m / 1024)) MiB" || bad "peak memory: $m KB"
    ;;
esac
