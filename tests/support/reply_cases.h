/* Replies and their right reading, for the parser and for what stands above it. */
#ifndef DG_TESTS_REPLY_CASES_H
#define DG_TESTS_REPLY_CASES_H

/* Field failures B05 (forms that models write beside the trained one; nothing of a marker in the text) and B12 (what cannot be read is text).
 * In `in` control tokens stand as they are spelled; \2 inside a spelling makes it ordinary text. `calls`: NAME ARGUMENTS;
 * each followed by a line end. flags: u unclosed thought, c cut text, b a call that could not be read; then what ended the
 * reply: t turn, r request for results, o an opened turn, e <eos>, nothing when cut short. */
struct reply_case {
    const char *in, *thought, *content, *calls, *flags;
};

#define S "<|\"|>"
#define CALL "<|tool_call>call:"
#define END "<tool_call|>"
static const struct reply_case reply_cases[] = {
    /* text */
    {"", "", "", "", ""},
    {"Hello<turn|>", "", "Hello", "", "t"},
    {"Hello", "", "Hello", "", ""},
    {"Hello<eos>", "", "Hello", "", "e"},
    {"a\nb \n<turn|>", "", "a\nb \n", "", "t"},
    {"Hi<turn|>\nmore<turn|>", "", "Hi", "", "t"},
    {"Hi<|turn>user\nYo<turn|>", "", "Hi", "", "o"},
    {"<|turn>model\nHi<turn|>", "", "Hi", "", "t"},
    {"<|turn>model\n<|channel>thought\nx<channel|>Hi<turn|>", "x", "Hi", "", "t"},
    {"<|turn>user\nHi<turn|>", "", "", "", "o"},
    {"<|turn>mo<turn|>", "", "", "", "t"},
    {"a<|image|>b<pad><mask>c<bos><turn|>", "", "abc", "", "t"},
    {"a<tool_call|>b<tool_response|>c" S "d<|tool>e<tool|><turn|>", "", "abcde", "", "t"},
    {"the token <\2turn|> ends a turn<turn|>", "", "the token <turn|> ends a turn", "", "t"},
    {"h\303\251llo \360\237\231\202<turn|>", "", "h\303\251llo \360\237\231\202", "", "t"},
    /* thoughts */
    {"<|channel>thought\nI see.\n<channel|>Yes<turn|>", "I see.", "Yes", "", "t"},
    {"<|channel>thought\nI see.<channel|>Yes<turn|>", "I see.", "Yes", "", "t"},
    {"<|channel>thought\na\n\n<channel|>b<turn|>", "a\n", "b", "", "t"},
    {"<|channel>thought\n<channel|>Yes<turn|>", "", "Yes", "", "t"},
    {"<|channel>thought<channel|>Yes<turn|>", "", "Yes", "", "t"},
    {"<|channel><channel|>Yes<turn|>", "", "Yes", "", "t"},
    {"<|channel>thoughts differ<channel|>Yes<turn|>", "thoughts differ", "Yes", "", "t"},
    {"<|channel>think\nx<channel|>Yes<turn|>", "think\nx", "Yes", "", "t"},
    {"<|channel>tho<channel|>Yes<turn|>", "tho", "Yes", "", "t"},
    {"<|channel>tho", "", "", "", "u"},
    {"Well. <|channel>thought\nx<channel|>Yes<turn|>", "x", "Well. Yes", "", "t"},
    {"<channel|>Yes<turn|>", "", "Yes", "", "t"},
    {"<|channel>thought\na<|channel>thought\nb<channel|>c<channel|>d<turn|>", "ab", "cd", "", "t"},
    {"<|channel>thought\na<channel|>b<|channel>thought\nc\n<channel|>d<turn|>", "ac", "bd", "", "t"},
    {"<|channel>thought\ncut in mid", "cut in mid", "", "", "u"},
    {"<|channel>thought\nno close<turn|>", "no close", "", "", "ut"},
    {"<|channel>thought\nuse <\2channel|> well<channel|>ok<turn|>", "use <channel|> well", "ok", "", "t"},
    {"<|channel>thought\n\n\nx\n\ny\n<channel|>z<turn|>", "\n\nx\n\ny", "z", "", "t"},
    /* calls as trained */
    {CALL "f{}" END "<|tool_response>", "", "", "f {}\n", "r"},
    {CALL "f{a:1,b:-2.5e3,c:true,d:false,e:null}" END "<|tool_response>", "", "",
     "f {\"a\":1,\"b\":-2.5e3,\"c\":true,\"d\":false,\"e\":null}\n", "r"},
    {CALL "f{q:" S "a {b} \"c\", d: [e]\n\\" S "}" END "<|tool_response>", "", "",
     "f {\"q\":\"a {b} \\\"c\\\", d: [e]\\n\\\\\"}\n", "r"},
    {CALL "f{q:" S S "}" END, "", "", "f {\"q\":\"\"}\n", ""},
    {CALL "f{o:{k:" S "v" S ",l:[1,{m:null}]},z:[]}" END, "", "", "f {\"o\":{\"k\":\"v\",\"l\":[1,{\"m\":null}]},\"z\":[]}\n", ""},
    {CALL "f{" S "a b" S ":1}" END, "", "", "f {\"a b\":1}\n", ""},
    {CALL "f{n:123456789012345678901234567890}" END, "", "", "f {\"n\":123456789012345678901234567890}\n", ""},
    {CALL "f{q:" S "use <\2|tool_call> here" S "}" END, "", "", "f {\"q\":\"use <|tool_call> here\"}\n", ""},
    {"Let me look. " CALL "f{}" END "<|tool_response>", "", "Let me look. ", "f {}\n", "r"},
    {"<|channel>thought\nneed f\n<channel|>" CALL "f{}" END "<|tool_response>", "need f", "", "f {}\n", "r"},
    {CALL "f{a:1}" END CALL "g{b:2}" END "<|tool_response>", "", "", "f {\"a\":1}\ng {\"b\":2}\n", "r"},
    /* what comes after a call */
    {CALL "f{}" END "It is sunny.<turn|>", "", "", "f {}\n", "ct"},
    {CALL "f{}" END "\n<turn|>", "", "", "f {}\n", "t"},
    {"One. " CALL "f{}" END " two " CALL "g{}" END " three<turn|>", "", "One. ", "f {}\ng {}\n", "ct"},
    {CALL "f{}" END "<|tool_response>response:f{value:1}<tool_response|>ok", "", "", "f {}\n", "r"},
    {CALL "f{}" END "<|channel>thought\nhm<channel|>" CALL "g{}" END, "", "", "f {}\ng {}\n", "c"},
    /* calls in thoughts */
    {"<|channel>thought\nI call\n" CALL "f{}" END "<|tool_response>", "I call", "", "f {}\n", "ur"},
    {"<|channel>thought\nI call" CALL "f{}" END "<channel|>done<turn|>", "I call", "", "f {}\n", "uct"},
    {"<|channel>" CALL "f{}" END, "", "", "f {}\n", "u"},
    {"<|channel>thought\na <|tool_call>oops" END " b\n<channel|>c<turn|>", "a oops b", "c", "", "bt"},
    /* missing closers */
    {CALL "f{a:1}<|tool_response>", "", "", "f {\"a\":1}\n", "r"},
    {CALL "f{a:1}<turn|>", "", "", "f {\"a\":1}\n", "t"},
    {CALL "f{a:1}", "", "", "f {\"a\":1}\n", ""},
    {CALL "f{a:1}" CALL "g{}" END, "", "", "f {\"a\":1}\ng {}\n", ""},
    {CALL "f{a:1" END, "", "", "f {\"a\":1}\n", ""},
    {CALL "f{a:[1,{b:" S "x" S "" END, "", "", "f {\"a\":[1,{\"b\":\"x\"}]}\n", ""},
    {CALL "f{a:[1,2}" END, "", "", "f {\"a\":[1,2]}\n", ""},
    {CALL "f{a:{b:[x}}" END, "", "", "f {\"a\":{\"b\":[\"x\"]}}\n", ""},
    {CALL "f{}Done.<turn|>", "", "", "f {}\n", "ct"},
    {CALL "f{}}" END "<|tool_response>", "", "", "f {}\n", "cr"},
    {CALL "f{a:1<|tool_response>", "", "", "f {\"a\":1}\n", "r"},
    {CALL "f" END, "", "", "f {}\n", ""},
    {CALL "f{a:1}\ncall:g{b:2}" END, "", "", "f {\"a\":1}\ng {\"b\":2}\n", ""},
    {CALL "f{a:1},call:g{b:2}call:h()" END, "", "", "f {\"a\":1}\ng {\"b\":2}\nh {}\n", ""},
    {CALL "f{<|channel>thought\nx<channel|>y<turn|>", "", "", "f {}\n", "ct"},
    /* forms that models write beside it */
    {CALL "f()" END, "", "", "f {}\n", ""},
    {CALL "f(a:1, b=" S "x" S ")" END, "", "", "f {\"a\":1,\"b\":\"x\"}\n", ""},
    {CALL "f(city='Rome', n=3)" END, "", "", "f {\"city\":\"Rome\",\"n\":3}\n", ""},
    {CALL "f({\"a\": [1, \"x)\"]})" END, "", "", "f {\"a\":[1,\"x)\"]}\n", ""},
    {CALL "f{\"a\": 1, \"b\": \"x\\n\\u00e9\"}" END, "", "", "f {\"a\":1,\"b\":\"x\\n\\u00e9\"}\n", ""},
    {CALL "f{{\"a\": 1}}" END, "", "", "f {\"a\":1}\n", ""},
    {CALL "f{{}}" END, "", "", "f {}\n", ""},
    {CALL "f{ a : 1 , b : [ x , y z ] , }" END, "", "", "f {\"a\":1,\"b\":[\"x\",\"y z\"]}\n", ""},
    {CALL "f{a:None,b:nil,c:NULL,d:True,e:FALSE}" END, "", "", "f {\"a\":null,\"b\":null,\"c\":null,\"d\":true,\"e\":false}\n", ""},
    {CALL "f{a:007,b:+1,c:.5,d:1.,e:0x1F,f:-0.0}" END, "", "",
     "f {\"a\":\"007\",\"b\":\"+1\",\"c\":\".5\",\"d\":\"1.\",\"e\":\"0x1F\",\"f\":-0.0}\n", ""},
    {CALL "f{url:http://x.y/z?q=1}" END, "", "", "f {\"url\":\"http://x.y/z?q=1\"}\n", ""},
    {CALL "f{a:\"two\nlines\"}" END, "", "", "f {\"a\":\"two\\u000alines\"}\n", ""},
    {"<|tool_call>f{a:1}" END, "", "", "f {\"a\":1}\n", ""},
    {"<|tool_call> call:f {a:1} " END, "", "", "f {\"a\":1}\n", ""},
    {CALL "ns:files.read-all_2{}" END, "", "", "ns:files.read-all_2 {}\n", ""},
    {CALL "a/b c(d){x:1}" END, "", "", "a/b c(d) {\"x\":1}\n", ""},
    {CALL S "f" S "{}" END, "", "", "f {}\n", ""},
    {CALL "\"f\"{}" END, "", "", "f {}\n", ""},
    /* no calls */
    {"```\n<\2|tool_call>call:f{}<\2tool_call|>\n```<turn|>", "", "```\n<|tool_call>call:f{}<tool_call|>\n```", "", "t"},
    {"use call:f{a:1} then<turn|>", "", "use call:f{a:1} then", "", "t"},
    {CALL "f{a:" S "x}" END "<turn|>", "", "call:f{a:\"x}", "", "bt"},
    {CALL "f{a:" S "x", "", "call:f{a:\"x", "", "b"},
    {CALL "f{a:1", "", "call:f{a:1", "", "b"},
    {CALL "f{a:tru", "", "call:f{a:tru", "", "b"},
    {CALL "f", "", "call:f", "", "b"},
    {"<|tool_call>", "", "", "", ""},
    {"<|tool_call>" END "x<turn|>", "", "x", "", "t"},
    {"Well <|tool_call>I think {so}" END ".<turn|>", "", "Well I think {so}.", "", "bt"},
    {CALL "{a:1}" END, "", "call:{a:1}", "", "b"},
    {CALL "f{a}" END, "", "call:f{a}", "", "b"},
    {CALL "f{:1}" END, "", "call:f{:1}", "", "b"},
    {CALL "f{a:}" END, "", "call:f{a:}", "", "b"},
    {CALL "f{a:" S "x" S " y}" END, "", "call:f{a:\"x\" y}", "", "b"},
    {CALL "f(\"x\")" END, "", "call:f(\"x\")", "", "b"},
    {CALL "f{a:1e999}" END, "", "call:f{a:1e999}", "", "b"},
    {CALL "f{a:\"\\ud800\"}" END, "", "call:f{a:\"\\ud800\"}", "", "b"},
    {CALL "f{a:1}" END CALL "g{a:" S "x" END "<turn|>", "", "", "f {\"a\":1}\n", "cbt"},
    {CALL "g{a:" S "x" END CALL "f{a:1}" END "<turn|>", "", "call:g{a:\"x", "f {\"a\":1}\n", "bt"},
};

#endif
