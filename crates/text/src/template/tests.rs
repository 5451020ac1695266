use serde_json::json;

use super::*;

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, Some("<s>"), Some("</s>")).unwrap()
}

/// The text of a template for one user message.
fn render(source: &str) -> Result<String> {
    template(source).render(&[Message::user("Hi")], &RenderOptions::for_answer())
}

#[test]
fn chatml_is_an_explicit_fallback() {
    let messages = [Message::system("Be brief."), Message::user("Hi")];
    let text =
        ChatTemplate::fallback_chatml().render(&messages, &RenderOptions::for_answer()).unwrap();
    assert_eq!(
        text,
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n\
         <|im_start|>assistant\n"
    );
}

#[test]
fn values_print_as_in_python() {
    assert_eq!(render("{{ true }} {{ none }} {{ 1.0 }} {{ 7 // 2 }}").unwrap(), "True None 1.0 3");
    assert_eq!(render("{{ ['a', 1, none] }}").unwrap(), "['a', 1, None]");
    assert_eq!(render(r#"{{ {'k': "it's"} }}"#).unwrap(), r#"{'k': "it's"}"#);
    assert_eq!(render("{{ missing }}|{{ true | string }}").unwrap(), "|True");
}

#[test]
fn the_language_of_real_templates_is_there() {
    let cases = [
        ("{%- set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}", "2"),
        ("{% for c in 'abc' %}{% if c == 'b' %}{% continue %}{% endif %}{{ c }}{% endfor %}", "ac"),
        ("{% for c in [1, 2] %}{% if loop.last %}{% break %}{% endif %}{{ c }}{% endfor %}", "1"),
        ("{% for c in 'ab' %}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}", "b;a;"),
        ("{{ ' a '.strip() }}{{ 'a</t>b'.split('</t>')[-1] }}{{ 'x\\n'.rstrip('\\n') }}", "abx"),
        ("{{ 'prefix'.removeprefix('pre') }}{{ 'suffix'.removesuffix('fix') }}", "fixsuf"),
        ("{{ 'ab'.startswith('a') and 'ab'.endswith('b') }}", "True"),
        (
            "{{ messages[0]['role'] }}{{ messages[-1].content }}{{ messages[1:] | length }}",
            "userHi0",
        ),
        (
            "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }}\
             {% if not loop.last %},{% endif %}{% endfor %}",
            "a=1,b=2",
        ),
        ("{{ {'a': 1}.get('b', 'none') }}", "none"),
        ("{% macro m(x, y='d') %}[{{ x }}{{ y }}]{% endmacro %}{{ m('a') }}", "[ad]"),
        ("{% generation %}x{% endgeneration %}", "x"),
        ("{{ bos_token }}{{ eos_token }}{{ tools is none }}", "<s></s>True"),
        ("{{ 'x' is sequence }}{{ 'x' is iterable }}{{ {} is mapping }}", "TrueTrueTrue"),
        ("{{ messages | map(attribute='role') | join(',') }}", "user"),
        ("{{ (messages | selectattr('role', 'equalto', 'user') | list) | length }}", "1"),
    ];
    for (source, expected) in cases {
        assert_eq!(render(source).unwrap(), expected, "{source}");
    }
}

#[test]
fn json_is_written_as_python_writes_it() {
    let cases = [
        (
            r#"{{ {'a': [1, true, none], 'é': "x\"y"} | tojson }}"#,
            r#"{"a": [1, true, null], "é": "x\"y"}"#,
        ),
        ("{{ [1, {}] | tojson(indent=2) }}", "[\n  1,\n  {}\n]"),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}", r#"{"a": 2, "b": 1}"#),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{{ 'é😀' | tojson(ensure_ascii=true) }}", r#""\u00e9\ud83d\ude00""#),
        ("{{ '<b>' | tojson }}", r#""<b>""#),
    ];
    for (source, expected) in cases {
        assert_eq!(render(source).unwrap(), expected, "{source}");
    }
}

#[test]
fn time_is_that_of_the_caller() {
    let options = RenderOptions {
        now: Some(jiff::civil::date(2024, 7, 26).at(13, 5, 9, 0)),
        ..RenderOptions::default()
    };
    let text = template("{{ strftime_now('%d %b %Y %H:%M') }}").render(&[], &options).unwrap();
    assert_eq!(text, "26 Jul 2024 13:05");
    assert_eq!(render("{{ strftime_now('%Y') | length }}").unwrap(), "4");
}

#[test]
fn a_refusal_has_the_words_of_the_template() {
    let error = render("{{ raise_exception('roles must alternate') }}").unwrap_err();
    assert!(
        matches!(&error, Error::TemplateRefused { message } if message == "roles must alternate"),
        "{error:?}"
    );
}

#[test]
fn errors_name_the_line() {
    let error = ChatTemplate::new("line\n{% if %}", None, None).unwrap_err();
    assert!(error.to_string().contains("line 2"), "{error}");
    let error = render("a\n\n{{ messages[0].x.y }}").unwrap_err();
    assert!(error.to_string().contains("line 3"), "{error}");
}

#[test]
fn extra_variables_reach_the_template() {
    let mut options = RenderOptions::for_answer();
    options.extra.insert("enable_thinking".to_owned(), json!(false));
    options.tools = Some(json!([{"name": "f"}]));
    let source = "{{ enable_thinking is false }}{{ tools[0].name }}";
    assert_eq!(template(source).render(&[], &options).unwrap(), "Falsef".replace("False", "True"));
}

#[test]
fn parts_and_text_are_fitted_to_the_template() {
    let parts: Message = serde_json::from_value(json!({
        "role": "user",
        "content": [{"type": "text", "text": "Hello "}, {"type": "text", "text": "you"}],
    }))
    .unwrap();
    let for_text = "{% for m in messages %}{{ '[' + m.content + ']' }}{% endfor %}";
    let for_parts =
        "{% for m in messages %}{% for p in m.content %}{{ p.text }};{% endfor %}{% endfor %}";
    let options = RenderOptions::default();
    let both = [parts, Message::user("Hi")];
    assert_eq!(template(for_text).render(&both, &options).unwrap(), "[Hello you][Hi]");
    assert_eq!(template(for_parts).render(&both, &options).unwrap(), "Hello ;you;Hi;");
}

#[test]
fn hostile_templates_end_with_an_error() {
    let sources = [
        "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
        "{% for a in range(100000000000) %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{{ 'x' * 1000000000000 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ 'x' | indent(1000000000) }}",
        "{{ 'x'.center(1000000000) }}",
        "{% set ns = namespace(x=[]) %}{% for a in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[]) %}{% for a in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}",
        "{% for a in range(9999) %}{{ 'x' * 1000 }}{% endfor %}",
        "{{ (1, 2) ** 99999999 }}",
        "{{ 9 ** 9 ** 9 ** 9 }}",
        "{% set ns = namespace(x=[1]) %}{% for a in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1]) %}{% for a in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}",
        "{% set ns = namespace(x=[1]) %}{% for a in range(30) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x | tojson }}",
        "{% set ns = namespace(x=[1]) %}{% for a in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x | length }}",
        "{% macro m(x, n) %}{% if n %}{{ m(x + x, n - 1) }}{% endif %}{% endmacro %}{{ m([1], 60) }}",
        "{% set ns = namespace(x=[1]) %}{% for a in range(60) %}{% set ns.x = ns.x | chain(ns.x) %}{% endfor %}{{ ns.x | length }}",
    ];
    for source in sources {
        let error = render(source).expect_err(source);
        assert!(
            matches!(error, Error::TemplateLimit { .. } | Error::TemplateRender { .. }),
            "{source}: {error}"
        );
    }
    for depth in [1_000, 100_000] {
        let nested = format!("{{{{ {}1{} }}}}", "(".repeat(depth), ")".repeat(depth));
        assert!(ChatTemplate::new(&nested, None, None).is_err());
        let nested = format!("{}{}", "{% if 1 %}".repeat(depth), "{% endif %}".repeat(depth));
        assert!(ChatTemplate::new(&nested, None, None).is_err());
    }
}

#[test]
fn holes_of_the_engine_are_errors() {
    let namespace = "{% set ns = namespace(x=[1], y=[1]) %}";
    let shared = "{% for a in range(60) %}{% set ns.x = [ns.x, ns.x] %}\
        {% set ns.y = [ns.y, ns.y] %}{% endfor %}";
    let panics = "{{ messages[0].content[-9223372036854775807 - 1:0:-9223372036854775807 - 1] }}";
    // Without overflow checks it does not panic.
    assert!(matches!(render(panics), Ok(_) | Err(Error::TemplateLimit { .. })));
    let endless = render(&format!("{namespace}{shared}{{{{ ns.x == ns.y }}}}"));
    assert!(matches!(endless, Err(Error::TemplateLimit { .. })), "{endless:?}");
    // Dropping, comparing and printing such values takes stack for each level. That this does not
    // end the process is all that is asked.
    for nest in ["[ns.x]", "[[[[[[ns.x]]]]]]", "{'k': ns.x}", "(ns.x,)", "[ns.x] | batch(1) | list"]
    {
        for use_it in ["", "{{ ns.x ~ '' }}", "{{ ns.x == ns.y }}", "{{ [ns.x, ns.y] | unique }}"] {
            let other = nest.replace("ns.x", "ns.y");
            let turn = format!("{{% set ns.x = {nest} %}}{{% set ns.y = {other} %}}");
            let turns = format!("{{% for a in range(99999) %}}{turn}{{% endfor %}}").repeat(9);
            _ = render(&format!("{namespace}{turns}{use_it}"));
            let source =
                format!("{namespace}{{% for a in range(9999) %}}{turn}{{% endfor %}}{use_it}");
            _ = render(&source);
        }
    }
}

#[test]
fn the_compiler_does_not_work_out_sums() {
    let sum = format!("{{{{ [1] * 99999999{} }}}}", " + [1]".repeat(40));
    assert!(matches!(render(&sum), Err(Error::TemplateLimit { .. })));
    assert_eq!(
        render("{{ [1] + [2] + [3] * 2 }}{{ (1, 2) + (3,) }}").unwrap(),
        "[1, 2, 3, 3][1, 2, 3]"
    );
}

#[test]
fn long_chains_do_not_exhaust_the_stack() {
    let links = 100_000;
    let chain = |start: &str, link: &str, end: &str| format!("{start}{}{end}", link.repeat(links));
    for source in [
        chain("{{ ", "-", "1 }}"),
        chain("{{ ", "not ", "1 }}"),
        chain("{{ 1", "+1", " }}"),
        chain("{{ 1", "|e", " }}"),
        chain("{{ a", ".b", " }}"),
        chain("{{ a", "[0]", " }}"),
        chain("{{ ", "1 if 0 else ", "1 }}"),
        chain("{% if 0 %}", "{%elif 0%}", "{% endif %}"),
    ] {
        // Right or wrong: an overflow would end the process.
        match ChatTemplate::new(&source, None, None) {
            Ok(_) | Err(Error::TemplateSyntax { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}
