use std::fmt::Write;

use super::*;
use crate::fields::STATE;
use crate::routes;

/// Set to write the page instead of comparing it.
const WRITE: &str = "BATON_WRITE_DOCS";
const BEGIN: &str = "<!-- Made from the table of routes; see crates/server/src/openapi.rs. -->\n";

#[test]
fn the_documentation_has_the_routes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/api.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (by_hand, table) = page.split_once(BEGIN).expect("the page has the mark");
    let made = markdown(&routes::all());
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(path, format!("{by_hand}{BEGIN}\n{}\n", made.trim())).unwrap();
        return;
    }
    assert_eq!(table.trim(), made.trim(), "run the test with {WRITE}=1 to write docs/api.md");
}

#[test]
fn every_reference_leads_somewhere() {
    let document = document(&routes::all());
    let mut references = Vec::new();
    collect(&document, &mut references);
    assert!(!references.is_empty());
    for reference in references {
        let place = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(place).is_some(), "{reference}");
    }
}

fn collect(value: &Value, references: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            references.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|value| collect(value, references));
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, references)),
        _ => {}
    }
}

#[test]
fn a_name_stands_for_one_schema() {
    let mut schemas = Schemas::new();
    routes::all().iter().for_each(|route| drop(operation(route, &mut schemas)));
    let replies = schemas.replies.take_definitions(true);
    for (name, request) in schemas.requests.take_definitions(true) {
        assert!(replies.get(&name).is_none_or(|reply| *reply == request), "{name}");
    }
}

#[test]
fn what_a_reply_may_leave_out_is_not_required() {
    let document = document(&routes::all());
    let message = &document["components"]["schemas"]["AnswerMessage"];
    assert!(message["properties"]["tool_calls"].is_object());
    let required = message["required"].as_array().unwrap();
    assert!(required.contains(&json!("role")) && !required.contains(&json!("tool_calls")));
}

#[test]
fn every_route_is_there_once() {
    let routes = routes::all();
    let mut seen = std::collections::HashSet::new();
    for route in &routes {
        assert!(seen.insert((route.method.clone(), route.path)), "{route:?} is there twice");
    }
    let document = document(&routes);
    for route in &routes {
        let path = route.path.replace("{*", "{");
        let method = route.method.as_str().to_ascii_lowercase();
        assert!(document["paths"][&path][&method]["summary"].is_string(), "{route:?}");
    }
}

/// The table of endpoints and their fields, in Markdown.
fn markdown(routes: &[Route]) -> String {
    let mut text = String::new();
    for api in Api::ALL {
        let own: Vec<&Route> = routes.iter().filter(|route| route.api == api).collect();
        if own.is_empty() {
            continue;
        }
        let _ = writeln!(text, "## {}\n\n| endpoint | what it does |\n|---|---|", api.title());
        for route in &own {
            let stream =
                route.stream.map_or(String::new(), |s| format!(" (`{}`)", s.content_type()));
            let _ = writeln!(
                text,
                "| `{} {}` | {}{stream} |",
                route.method,
                route.path.replace("{*", "{"),
                route.summary
            );
        }
        text.push('\n');
        fields(&own, &mut text);
    }
    text
}

/// The fields of each request once, however many routes take it.
fn fields(routes: &[&Route], text: &mut String) {
    let mut seen: Vec<Value> = Vec::new();
    for route in routes {
        let Some(schema) = route.request else { continue };
        let mut generator = Schemas::new().requests;
        let schema = schema(&mut generator).to_value();
        if seen.contains(&schema) {
            continue;
        }
        let definitions = generator.take_definitions(true);
        let name = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next());
        let definition = name.and_then(|name| definitions.get(name)).unwrap_or(&schema).clone();
        seen.push(schema);
        let Some(properties) = definition["properties"].as_object() else { continue };
        let _ = writeln!(text, "### `{} {}`\n", route.method, route.path);
        let _ = writeln!(text, "| field | state | meaning |\n|---|---|---|");
        for (name, property) in properties {
            let state = property[STATE].as_str().unwrap_or("works");
            let meaning = property["description"].as_str().unwrap_or("").replace('\n', " ");
            let _ = writeln!(text, "| `{name}` | {state} | {} |", meaning.replace('|', "\\|"));
        }
        text.push('\n');
    }
}
