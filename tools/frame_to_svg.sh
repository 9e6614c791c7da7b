#!/bin/sh
# Turns a terminal's screen into an SVG picture: tmux capture-pane -p -e | tools/frame_to_svg.sh COLUMNS >picture.svg
# Text and the colours of SGR 0, 2, 3x, 9x and 38;5;N come through, all else is dropped.
awk -v columns="${1:-80}" '
function escape(s) {
    gsub(/&/, "\\&amp;", s)
    gsub(/</, "\\&lt;", s)
    gsub(/>/, "\\&gt;", s)
    return s
}
# the colour of number n of the 256: 16 named ones, a cube of 6 levels, greys
function colour(n,    r, g, b) {
    if (n < 16)
        return named[n + 1]
    if (n > 231)
        return sprintf("#%02x%02x%02x", 8 + 10 * (n - 232), 8 + 10 * (n - 232), 8 + 10 * (n - 232))
    n -= 16
    r = int(n / 36); g = int(n / 6) % 6; b = n % 6
    return sprintf("#%02x%02x%02x", r ? 55 + 40 * r : 0, g ? 55 + 40 * g : 0, b ? 55 + 40 * b : 0)
}
function sgr(codes,    v, n, i) {
    n = split(codes == "" ? "0" : codes, v, ";")
    for (i = 1; i <= n; i++) {
        if (v[i] == 0 || v[i] == 39) fill = plain
        if (v[i] == 0 || v[i] == 22) faint = ""
        if (v[i] == 2) faint = " opacity=\"0.6\""
        if (v[i] >= 30 && v[i] <= 37) fill = named[v[i] - 29]
        if (v[i] >= 90 && v[i] <= 97) fill = named[v[i] - 81]
        if (v[i] == 38 && v[i + 1] == 5) { fill = colour(v[i + 2]); i += 2 }
    }
}
function piece(s) {
    if (s != "")
        row = row "<tspan fill=\"" fill "\"" faint ">" escape(s) "</tspan>"
}
BEGIN {
    split("#3b4252 #d0556b #6fb28a #d8b36a #6f9fd8 #b48ead #6fb5c0 #d8dee9 #616e88 #e06c75 #98c379 #e5c07b #61afef #c678dd #56b6c2 #ffffff", named, " ")
    plain = fill = "#d8dee9"
}
{
    row = ""
    while (match($0, /\033\[[0-9;]*m/)) {
        piece(substr($0, 1, RSTART - 1))
        sgr(substr($0, RSTART + 2, RLENGTH - 3))
        $0 = substr($0, RSTART + RLENGTH)
    }
    piece($0)
    rows[++n] = row
}
END {
    while (n > 0 && rows[n] == "")
        n--
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"monospace\" font-size=\"14\">\n", columns * 8.43 + 24, n * 19 + 22
    printf "<rect width=\"100%%\" height=\"100%%\" rx=\"6\" fill=\"#1e222a\"/>\n"
    for (i = 1; i <= n; i++)
        if (rows[i] != "")
            printf "<text x=\"12\" y=\"%d\" xml:space=\"preserve\">%s</text>\n", 6 + i * 19, rows[i]
    print "</svg>"
}'
