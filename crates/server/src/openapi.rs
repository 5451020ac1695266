//! The description of all routes, made from their table: for programs and for people.

use axum::response::Response;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::Result;
use crate::api::Api;
use crate::call::{Call, reply};
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
    let mut schemas = Schemas::new();
    let mut paths: Map<String, Value> = Map::new();
    for route in routes {
        let path = route.path.replace("{*", "{");
        let methods = paths.entry(path).or_insert_with(|| json!({}));
        let method = route.method.as_str().to_ascii_lowercase();
        methods[method] = operation(route, &mut schemas);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Baton",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The interfaces of OpenAI, Anthropic, Ollama and llama-server.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas.definitions(),
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer" },
                "key": { "type": "apiKey", "in": "header", "name": "x-api-key" },
            },
        },
        // A server without a key wants none.
        "security": [{}, { "bearer": [] }, { "key": [] }],
    })
}

/// What is taken and what is given differ: a field may be left out of a request if it has a default,
/// and of a reply if it says nothing.
struct Schemas {
    requests: SchemaGenerator,
    replies: SchemaGenerator,
}

impl Schemas {
    fn new() -> Schemas {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = SCHEMAS.into();
            settings.meta_schema = None;
        });
        Schemas {
            requests: settings.clone().into_generator(),
            replies: settings.for_serialize().into_generator(),
        }
    }

    /// The schemas that have names, each of which is of a request or of a reply.
    fn definitions(&mut self) -> Value {
        let mut all = self.requests.take_definitions(true);
        all.append(&mut self.replies.take_definitions(true));
        all.into()
    }
}

fn operation(route: &Route, schemas: &mut Schemas) -> Value {
    let mut content = Map::new();
    if let Some(schema) = route.response {
        content
            .insert("application/json".into(), json!({ "schema": schema(&mut schemas.replies) }));
    }
    if let Some(stream) = route.stream {
        // Schemas describe one JSON value; this is a sequence of them.
        content.insert(stream.content_type().into(), json!({}));
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
        let schema = schema(&mut schemas.requests);
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

#[cfg(test)]
mod tests;
