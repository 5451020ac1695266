//! The description of all routes, made from their table: for programs and for people.

use std::fmt::Write;

use axum::response::Response;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::Result;
use crate::api::Api;
use crate::call::{Call, reply};
use crate::fields::STATE;
use crate::routes::Route;

/// Where schemas stand in the document.
const SCHEMAS: &str = "/components/schemas";

/// The routes of this module.
pub(crate) fn routes() -> Vec<Route> {
    let summary = "Describe all endpoints as OpenAPI 3.1";
    vec![Route::get(Api::Baton, "/openapi.json", summary, document_of).public()]
}

async fn document_of(call: Call) -> Result<Response> {
    Ok(reply(&call.state.openapi))
}

/// The document for `routes`.
pub(crate) fn document(routes: &[Route]) -> Value {
    let mut generator = generator();
    let mut paths: Map<String, Value> = Map::new();
    for route in routes {
        let path = route.path.replace("{*", "{");
        let methods = paths.entry(path).or_insert_with(|| json!({}));
        let method = route.method.as_str().to_ascii_lowercase();
        methods[method] = operation(route, &mut generator);
    }
    let schemas = Value::Object(generator.take_definitions(true));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Baton",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The interfaces of OpenAI, Anthropic, Ollama and llama-server.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer" },
                "key": { "type": "apiKey", "in": "header", "name": "x-api-key" },
            },
        },
        // A server without a key wants none.
        "security": [{}, { "bearer": [] }, { "key": [] }],
    })
}

fn generator() -> SchemaGenerator {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = SCHEMAS.into();
        settings.meta_schema = None;
    });
    settings.into_generator()
}

fn operation(route: &Route, generator: &mut SchemaGenerator) -> Value {
    let mut content = Map::new();
    if let Some(schema) = route.response {
        content.insert("application/json".into(), json!({ "schema": schema(generator) }));
    }
    if let Some(stream) = route.stream {
        content.insert(stream.content_type().into(), json!({ "schema": { "type": "string" } }));
    }
    let mut done = json!({ "description": "Done" });
    if !content.is_empty() {
        done["content"] = content.into();
    }
    let failed = json!({ "description": "The request cannot be answered; the body says why" });
    let mut operation = json!({
        "summary": route.summary,
        "tags": [route.api.title()],
        "responses": { "200": done, "4XX": failed, "5XX": failed },
    });
    let parameters: Vec<Value> = variables(route.path)
        .map(|name| {
            json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
        })
        .collect();
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(schema) = route.request {
        let schema = schema(generator);
        operation["requestBody"] =
            json!({ "required": true, "content": { "application/json": { "schema": schema } } });
    }
    if route.public {
        operation["security"] = json!([]);
    }
    operation
}

/// The names of the variable parts of a path.
fn variables(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| {
        let name = part.strip_prefix('{')?.strip_suffix('}')?;
        Some(name.strip_prefix('*').unwrap_or(name))
    })
}

/// The table of endpoints and their fields, in Markdown.
pub fn markdown(routes: &[Route]) -> String {
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
        let mut generator = generator();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes;

    /// Set to write the page instead of comparing it.
    const WRITE: &str = "BATON_WRITE_DOCS";
    const BEGIN: &str =
        "<!-- Made from the table of routes; see crates/server/src/openapi.rs. -->\n";

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
}
