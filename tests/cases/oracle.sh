# The oracle folders: unpacked once into the build folder, then replayed by every program that reads them.
set -u
. "$DG_ROOT/tests/support/oracle_data.sh"
[ -n "$dirs" ] || { echo "not ok - no oracle folder under tests/data/oracle"; exit 1; }

for prog in oracle_parity; do
    log=$DG_BUILD/test-logs/$prog.out
    mkdir -p "$(dirname "$log")"
    # shellcheck disable=SC2086
    if "$DG_BUILD/tests/$prog" $dirs >"$log"; then
        echo "ok - $prog: $(tail -n 1 "$log")"
    else
        grep -h 'FAILED' "$log" >&2
        echo "not ok - $prog: $(tail -n 1 "$log")"
    fi
done

# the replay must notice a wrong stream
wrong=$out/../oracle-wrong
set -- $dirs
rm -rf "$wrong" && mkdir -p "$wrong" && cp "$1/config.json" "$1/oracle.safetensors" "$wrong" &&
    sed 's/"seed": 42/"seed": 43/' "$1/oracle.json" >"$wrong/oracle.json"
if "$DG_BUILD/tests/sampler_replay" "$wrong" >"$wrong/out"; then
    echo "not ok - sampler_replay passes with another seed than the stored one"
elif grep -q 'canvas0 .*FAILED' "$wrong/out" && grep -q 'accept .*ok' "$wrong/out"; then
    echo "ok - sampler_replay names the keys that another seed changes"
else
    echo "not ok - sampler_replay with another seed: $(tail -n 1 "$wrong/out")"
fi

# prompt ids of another element type are a failure of that key, not a prompt left out
cp "$1/oracle.json" "$wrong" && cp "$1/generation_config.json" "$1"/*model* "$wrong" 2>/dev/null
LC_ALL=C sed 's/"p7.ids":{"dtype":"I32"/"p7.ids":{"dtype":"F32"/' "$1/oracle.safetensors" >"$wrong/oracle.safetensors"
if "$DG_BUILD/tests/oracle_parity" "$wrong" >"$wrong/out" 2>/dev/null; then
    echo "not ok - oracle_parity passes over prompt ids it cannot read"
elif grep -q 'p7.ids .*FAILED' "$wrong/out"; then
    echo "ok - oracle_parity names prompt ids it cannot read"
else
    echo "not ok - oracle_parity with float prompt ids: $(tail -n 1 "$wrong/out")"
fi

# a stored key that nobody looks at
LC_ALL=C sed 's/"p7.k0":/"p7.q0":/' "$1/oracle.safetensors" >"$wrong/oracle.safetensors"
if "$DG_BUILD/tests/oracle_parity" "$wrong" >"$wrong/out" 2>/dev/null; then
    echo "not ok - oracle_parity passes over a key that nothing judges"
elif grep -q 'p7.q0 .*FAILED: stored, but nothing judges it' "$wrong/out" && [ "$(grep -c FAILED "$wrong/out")" -eq 1 ]; then
    echo "ok - oracle_parity names a stored key that nothing judges"
else
    echo "not ok - oracle_parity with an unknown key: $(tail -n 1 "$wrong/out")"
fi

# trajectory logits whose steps and positions are exchanged
LC_ALL=C sed 's/\("traj_[a-z]*.b0.logits":{"dtype":"F32","shape":\[\)\([0-9]*\),\([0-9]*\),/\1\3,\2,/g' "$1/oracle.safetensors" >"$wrong/oracle.safetensors"
if "$DG_BUILD/tests/oracle_parity" "$wrong" >"$wrong/out" 2>/dev/null; then
    echo "not ok - oracle_parity passes trajectory logits of another shape"
elif grep -q 'b0.logits .*FAILED' "$wrong/out"; then
    echo "ok - oracle_parity names trajectory logits of another shape"
else
    echo "not ok - oracle_parity with turned logits: $(tail -n 1 "$wrong/out")"
fi
