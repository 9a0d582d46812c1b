//! Calls in Qwen3-Coder's tags.

use crate::harness::{
    CODER, check, check_calls, check_text, parse, parser, tokenizer, with_markers,
};
use mini_infer_text::OutputEvent;

#[test]
fn qwen3_coder_writes_values_between_tags() {
    let call = "<tool_call>\n<function=get_weather>\n<parameter=city>\nKöln\n</parameter>\n\
                <parameter=days>\n3\n</parameter>\n</function>\n</tool_call>";
    // Nothing is known of its parameters, so all are texts.
    let expected = ("get_weather", r#"{"city": "Köln", "days": "3"}"#);
    check_calls(CODER, call, &[expected]);
    check_calls(CODER, &format!("\n{call}\n{call}\n"), &[expected, expected]);
    check(CODER, &format!("I look.\n\n{call}"), "I look.", "", &[expected]);
    check_calls(CODER, "<tool_call><function=g></function></tool_call>", &[("g", "{}")]);
    check_calls(
        CODER,
        "<tool_call><function=f><parameter=a>1</parameter></function><function=get-time></function>",
        &[("f", "{\"a\": \"1\"}"), ("get-time", "{}")],
    );
    // Hermes' form, which the tokens of these models were trained with too.
    check_calls(
        CODER,
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>",
        &[("f", "{\"a\": 1}")],
    );
}

#[test]
fn qwen3_coder_values_have_the_types_of_their_tool() {
    let parameter = |key: &str, value: &str| format!("<parameter={key}>\n{value}\n</parameter>\n");
    let call = |parameters: &str| {
        format!("<tool_call>\n<function=typed>\n{parameters}</function>\n</tool_call>")
    };
    let check = |key: &str, value: &str, json: &str| {
        let arguments = format!("{{\"{key}\": {json}}}");
        check_calls(CODER, &call(&parameter(key, value)), &[("typed", &arguments)]);
    };
    check("text", "5", "\"5\"");
    check("text", "", "\"\"");
    check("text", "\n a\tb\"\\ \n\n", "\"\\n a\\tb\\\"\\\\ \\n\\n\"");
    check("text", "</p <</parameter", "\"</p <</parameter\"");
    check("number", "-5", "-5");
    check("flag", "True", "true");
    check("list", "[1, {\"a\": null}]", "[1, {\"a\": null}]");
    check("map", "{'a': [True]}", "{\"a\": [true]}");
    check("maybe", "null", "null");
    check("any", "5", "\"5\"");
    check("unknown", "true", "\"true\"");
    let two = call(&(parameter("number", "1") + &parameter("text", "a")));
    check_calls(CODER, &two, &[("typed", "{\"number\": 1, \"text\": \"a\"}")]);
    let inline =
        "<tool_call><function=typed><parameter=number>7</parameter></function></tool_call>";
    check_calls(CODER, inline, &[("typed", "{\"number\": 7}")]);
}

#[test]
fn qwen3_coder_may_leave_out_the_outer_tags() {
    let call = "<function=f>\n<parameter=a>\nb\n</parameter>\n</function>";
    let expected = ("f", "{\"a\": \"b\"}");
    check_calls(CODER, call, &[expected]);
    check_calls(CODER, &format!("{call}\n</tool_call>"), &[expected]);
    check_calls(CODER, &format!("{call}\n{call}"), &[expected, expected]);
    check(CODER, &format!("Now: {call} done"), "Now:  done", "", &[expected]);
    // Without them, it is a call only with a tool's name.
    check_text(CODER, "<function=print>\n</function>");
    check_text(CODER, "a <function f=\"1\"> b");
}

#[test]
fn qwen3_coder_calls_that_break_off_are_given_up_to_there() {
    let open = "<tool_call><function=typed><parameter=text>a";
    check_calls(CODER, open, &[("typed", "{\"text\": \"a")]);
    let number = "<tool_call><function=typed><parameter=number>12";
    check(CODER, number, "12", "", &[("typed", "{\"number\": ")]);
    let lost = "<tool_call><function=typed><parameter=flag>true</parameter> oops";
    check(CODER, lost, "oops", "", &[("typed", "{\"flag\": true")]);
    for text in ["<tool_call><function=f>\n<param", "<tool_call><function=f>x", "<tool_call>x"] {
        let parser = parser(CODER, &tokenizer(4));
        let parsed = parse(&parser, &with_markers(&parser, text));
        assert_eq!((parsed.content.as_str(), parsed.calls.len()), (text, 0));
    }
}

#[test]
fn a_long_text_is_given_out_while_it_is_written() {
    let mut parser = parser(CODER, &tokenizer(4));
    parser.push("<tool_call><function=typed><parameter=text>\n");
    let arguments = OutputEvent::Arguments { index: 0, text: "abc".to_owned() };
    assert_eq!(parser.push("abc\n</pa"), [arguments]);
    let arguments = OutputEvent::Arguments { index: 0, text: "\\n</pad".to_owned() };
    assert_eq!(parser.push("d"), [arguments]);
}
