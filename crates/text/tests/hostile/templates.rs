//! Templates that nest, double, repeat or loop without end.

use crate::{check_ends, load, tiny_tokenizer};
use mini_infer_text::{ChatTemplate, GenerationPrompt, RenderOptions, TemplateError};
use serde_json::{Map, json};
use std::time::SystemTime;

fn render(source: &str) -> Result<usize, TemplateError> {
    let options = RenderOptions {
        generation_prompt: GenerationPrompt::Add,
        variables: Map::new(),
        now: SystemTime::UNIX_EPOCH,
    };
    let template = ChatTemplate::new(source, &load(&tiny_tokenizer()).unwrap())?;
    let messages = [json!({"role": "user", "content": "a"})];
    template.render(&messages, &options).map(|prompt| prompt.text().len())
}

#[test]
fn expressions_that_would_overflow_the_stack_do_not_compile() {
    let sources = [
        format!("{{{{ {}1 }}}}", "not ".repeat(60_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(200_000)),
        format!("{{{{ {}1 }}}}", "1+".repeat(120_000)),
        format!("{{{{ {}'a' }}}}", "'a'~".repeat(60_000)),
        format!("{{{{ x{} }}}}", ".a".repeat(120_000)),
        format!("{{{{ 1{} }}}}", "|string".repeat(35_000)),
        format!("{{{{ {}1 }}}}", "1 if 1 else ".repeat(20_000)),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(20_000)),
        format!("{{{{ {}1{} }}}}", "(".repeat(400), ")".repeat(400)),
        format!("{{{{ {}{} }}}}", "[".repeat(200), "]".repeat(200)),
        format!("{}{}", "{% for a in [] %}".repeat(9_000), "{% endfor %}".repeat(9_000)),
    ];
    for source in sources {
        let ended = check_ends(|| render(&source));
        assert!(
            matches!(ended, Err(TemplateError::TooComplex { .. } | TemplateError::Syntax { .. })),
            "{ended:?}"
        );
    }
    // Just inside the limits, compiling takes less than the stack that a thread has.
    let longest = [
        format!("{{{{ {}1 }}}}", "not ".repeat(490)),
        format!("{{{{ x{} }}}}", " and x".repeat(240)),
        format!("{{{{ 1{} }}}}", "|string".repeat(240)),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(240)),
    ];
    for source in longest {
        check_ends(|| render(&source)).unwrap();
    }
}

#[test]
fn widths_in_format_strings_are_bounded() {
    for source in ["{{ '{:>999999999}'.format('a') }}", "{{ '%999999999d' | format(1) }}"] {
        let ended = check_ends(|| render(source));
        assert!(matches!(ended, Err(TemplateError::TooExpensive)), "{source}: {ended:?}");
    }
    assert_eq!(render("{{ '{:>12}'.format('a') }}").unwrap(), 12);
}

/// Checks that a template ends with an error that contains `expected`.
fn check_refused(source: &str, expected: &str) {
    let ended = check_ends(|| render(source));
    let error = ended.expect_err(source).to_string();
    assert!(error.contains(expected), "{source}: {error}");
}

const TOO_EXPENSIVE: &str = "takes too much time or memory";
const TOO_DEEP: &str = "too many lists inside one another";

/// Repeats `statements` more often than any template may.
fn repeated(statements: &str) -> String {
    let start = "{% set ns = namespace(x=[1], y='a', z={}) %}{% macro pass(a, b) %}{% endmacro %}";
    let begin = "{% for i in range(90000) %}{% for j in range(90000) %}";
    format!("{start}{begin}{statements}{{% endfor %}}{{% endfor %}}{{{{ ns.x }}}}")
}

#[test]
fn namespaces_and_loops_do_not_come_to_lie_inside_themselves() {
    let stored = [
        "{% set ns.n = ns %}",
        "{% set ns.n = [ns] %}",
        "{% set ns.n = {'a': [1, (ns, 2)]} %}",
        "{% set ns.n = [ns][0:] %}",
        "{% set ns.a = 1 %}{% set ns.n = [ns, ns] | map(attribute='n') %}{% set ns.n = [ns] | batch(1) %}",
        "{% set ns.n = namespace(m=ns) %}",
        "{% set inner = namespace(m=ns) %}{% set ns.n = [inner] %}",
        "{% for x in [ns, 1] %}{% set ns.n = loop %}{% endfor %}",
        "{% macro m() %}{{ ns }}{% endmacro %}{% set ns.n = m %}",
        "{% macro m(a, b) %}{% set a.n = b %}{% endmacro %}{{ m(ns, ns) }}",
        "{% macro m() %}{% set ns.n = caller %}{% endmacro %}{% call m() %}{{ ns }}{% endcall %}",
        "{% with a = ns %}{% set a.n = ns %}{% endwith %}",
        // Blocks whose text goes through filters, and what a loop remembers.
        "{% set ns.n | default(ns, true) %}{% endset %}",
        "{% set ns.n | upper | replace('A', '') | default([ns], true) %}a{% endset %}",
        "{% for x in [1] %}{% if loop.changed(loop) %}{% endif %}{% endfor %}",
        "{% for x in [1] %}{% if loop.changed(1, [ns]) %}{% endif %}{% endfor %}",
        // Comments and raw blocks that end later than it seems.
        "{#} {{ ' #}{% set ns.n = ns %}' }}",
        "{% raw %}{% endrawx %}{{ '{% endraw %}{% set ns.n = ns %}' }}",
    ];
    for stored in stored {
        for used in ["{{ ns }}", "{{ ns == ns.n }}", "{{ ns | tojson }}", "{{ ns in [ns.n] }}"] {
            let source = format!("{{% set ns = namespace() %}}{stored}{used}");
            check_refused(&source, "namespaces and loops hold only plain data");
        }
    }
    let held = "{% set a = namespace(n=1) %}{% set b = namespace(a=a) %}{% set a.n = 2 %}{{ b }}";
    assert_eq!(check_ends(|| render(held)).unwrap(), "{'a': {'n': 2}}".len());
}

#[test]
fn what_doubles_again_and_again_ends() {
    for statements in [
        "{% set ns.x = ns.x + ns.x %}",
        "{% set ns.x = ns.x + ns.x + [ns.x | length] %}",
        "{% set ns.x = [ns.x, ns.x] %}",
        "{% set ns.x = {'a': ns.x, 'b': ns.x} %}",
        "{% set ns.x = (ns.x, ns.x) %}",
        "{% set ns.y = ns.y ~ ns.y %}",
        "{% set ns.y = ns.y + ns.y %}",
        "{% set ns.y %}{{ ns.y }}{{ ns.y }}{% endset %}",
        "{% set ns.y = ns.y | replace('a', 'aa') %}",
        "{% set ns.y = ns.x | string %}{% set ns.x = [ns.y, ns.y] %}",
        "{% set ns.x = [ns.x ~ ns.x] %}",
        "{% set x = ns.x + ns.x %}{% set ns.x = x %}",
    ] {
        let ended = check_ends(|| render(&repeated(statements)));
        let error = ended.expect_err(statements).to_string();
        assert!([TOO_EXPENSIVE, TOO_DEEP].iter().any(|end| error.contains(end)), "{error}");
    }
    let copied = |text: &str| text.repeat(60);
    for source in [
        format!("{{% set x = [1] %}}{}{{{{ x }}}}", copied("{% set x = x + x %}")),
        format!("{{% set x = [1] %}}{}{{{{ x ~ '' }}}}", copied("{% set x = [x, x] %}")),
        format!(
            "{{% set n = namespace(x=[1]) %}}{}",
            copied("{% set n = namespace(x=n.x + n.x) %}")
        ),
        format!("{{% set x = [1] %}}{}{}", copied("{% with x = x + x %}"), copied("{% endwith %}")),
        "{% macro m(x, n) %}{{ m(x + x, n - 1) if n }}{% endmacro %}{{ m([1], 60) }}".to_owned(),
        "{% for x in [[1]] recursive %}{{ loop([x + x]) }}{% endfor %}".to_owned(),
        "{% macro m() %}{{ caller([1]) }}{% endmacro %}".to_owned()
            + &copied("{% call(x) m() %}{% set x = x + x %}")
            + "{{ x + x }}"
            + &copied("{% endcall %}"),
    ] {
        // Recursion has its own limit, which is reached first.
        drop(check_ends(|| render(&source)));
    }
    assert_peak_memory_is_bounded();
}

/// Text that is repeated within one expression, where no name is bound.
#[test]
fn what_one_expression_repeats_ends() {
    let text = "{% set y = 'abcdefgh' * 20000 %}";
    for repeated in [
        "{{ range(90000) | map(attribute='z', default=y) }}",
        "{{ range(90000) | map(attribute='z', default=y) | join | length }}",
        "{{ ''.join(range(90000) | map(attribute='z', default=y)) | length }}",
        "{{ range(90000) | map(attribute='z', default=y) | string | length }}",
        "{{ ('{0}' * 90000).format(y) | length }}",
        "{{ ('{0}' * 90000).format([y]) | length }}",
        "{{ ('{0:>9999}' * 90000).format('a') | length }}",
        "{{ ('{a}' * 90000).format(a=y) | length }}",
    ] {
        check_refused(&format!("{text}{repeated}"), TOO_EXPENSIVE);
    }
    let joined =
        "{{ [1, 'a', [2]] | join('-') }} {{ '+'.join(['a', 'b']) }} {{ '{} {}'.format(1, [2]) }}";
    assert_eq!(check_ends(|| render(joined)).unwrap(), "1-a-[2] a+b 1 [2]".len());
    assert_peak_memory_is_bounded();
}

/// Checks what this process has ever used, where the system tells.
fn assert_peak_memory_is_bounded() {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return };
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak_kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak_kib < 1 << 20, "{peak_kib} KiB");
}

#[test]
fn what_nests_deeper_and_deeper_is_refused() {
    for statements in [
        "{% set ns.x = [ns.x] %}",
        "{% set ns.x = (ns.x,) %}",
        "{% set ns.x = {'a': ns.x} %}",
        "{% set ns.x = [[[[[[[[[[ns.x]]]]]]]]]] %}",
        "{% set ns.x = [ns.x][0:] %}",
        "{% set ns.x = ns.x | batch(1) %}",
        "{% set ns.x = ns.x | batch(1) | list %}",
        "{% set ns.x = dict(a=ns.x) %}",
        "{% set ns.x = namespace(a=ns.x).a %}{% set ns.x = [ns.x] | list %}",
    ] {
        check_refused(&repeated(statements), TOO_DEEP);
    }
    let copied = "{% set x = [x] %}".repeat(10_000);
    check_refused(&format!("{{% set x = 1 %}}{copied}{{{{ x }}}}"), TOO_DEEP);
    let copied = "{% set n = namespace(n=n) %}".repeat(5_000);
    check_refused(&format!("{{% set n = 1 %}}{copied}{{{{ n }}}}"), TOO_DEEP);
    let brackets = format!("{}x{}", "[".repeat(60), "]".repeat(60));
    let by_macro =
        format!("{{% macro m(x) %}}{{{{ m({brackets}) }}}}{{% endmacro %}}{{{{ m(1) }}}}");
    check_refused(&by_macro, TOO_DEEP);
    let by_loop =
        format!("{{% for x in [1] recursive %}}{{{{ loop([{brackets}]) }}}}{{% endfor %}}");
    check_refused(&by_loop, TOO_DEEP);
    // Slices of slices are lists as deep as one.
    let slices =
        "{% set x = [1, 2] %}".to_owned() + &"{% set x = x[0:] %}".repeat(5_000) + "{{ x }}";
    assert_eq!(check_ends(|| render(&slices)).unwrap(), "[1, 2]".len());
}

#[test]
fn lists_are_not_multiplied_and_what_templates_do_works() {
    for source in ["{{ [1] * 9 }}", "{{ 9 * messages }}", "{{ [[0] * 99999999] * 99999999 ~ '' }}"]
    {
        check_refused(source, "lists cannot be multiplied");
    }
    let check = |source: &str, expected: &str| {
        assert_eq!(check_ends(|| render(source)).unwrap(), expected.len(), "{source}");
    };
    check("{{ '  ' * 2 ~ 3 * 1e1 }}", "    30.0");
    let collected = "{% set ns = namespace(x=[]) %}{% for i in range(1000) %}\
        {% set ns.x = ns.x + [messages[0]] %}{% endfor %}{{ ns.x[999].content }}";
    check(collected, "a");
    let passed = "{% macro m(n, x) %}{% set n.x = n.x + [x] %}{{ n.x }}{% endmacro %}\
        {% set ns = namespace(x=[]) %}{{ m(ns, 1) }}{{ m(ns, {'a': 2}) }}";
    check(passed, "[1][1, {'a': 2}]");
    let nested = "{% set ns = namespace(x=1) %}{% for i in range(200) %}{% set ns.x = [ns.x] %}\
        {% endfor %}{{ ns.x }}";
    check(nested, &format!("{}1{}", "[".repeat(200), "]".repeat(200)));
}
