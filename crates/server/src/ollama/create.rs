//! `POST /api/create`: a model of the user's own, made from another one.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use baton_hub::Custom;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::manage::{Progress, line};
use super::models::named;
use super::options::Options;
use crate::call::{Call, reply};
use crate::fields::{Ignored, Refused};
use crate::models::Models;
use crate::routes::Stream;
use crate::text_or::Texts;
use crate::{ApiError, Result};

/// The model to be made.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "OllamaCreateRequest")]
pub(super) struct CreateRequest {
    /// The name of the new model.
    model: Option<String>,
    /// As `model`.
    name: Option<String>,
    /// The model that it is made from.
    from: Option<String>,
    /// Instructions for conversations that have none.
    system: Option<String>,
    /// Parameters for requests that do not set them, as in `options`.
    parameters: Option<BTreeMap<String, Value>>,
    /// A licence, or several.
    license: Option<Texts>,
    /// Whether progress is told; yes if not said.
    stream: Option<bool>,
    /// The model's own template is used.
    #[serde(default, rename = "template")]
    _template: Refused,
    /// Conversations begin with the messages of the request.
    #[serde(default, rename = "messages")]
    _messages: Refused,
    /// Models are made from others.
    #[serde(default, rename = "files")]
    _files: Refused,
    /// Baton runs no adapters.
    #[serde(default, rename = "adapters")]
    _adapters: Refused,
    /// Models stay as they are.
    #[serde(default, rename = "quantize")]
    _quantize: Refused,
    /// Modelfiles are read by the client.
    #[serde(default, rename = "modelfile")]
    _modelfile: Refused,
    /// What a model is follows from its files.
    #[serde(default, rename = "info")]
    _info: Ignored,
    /// The model's own template is used.
    #[serde(default, rename = "renderer")]
    _renderer: Refused,
    /// How the model writes calls follows from its template.
    #[serde(default, rename = "parser")]
    _parser: Refused,
    /// Baton runs what it knows.
    #[serde(default, rename = "requires")]
    _requires: Ignored,
}

/// Makes the model.
pub(super) async fn create(call: Call) -> Result<Response> {
    let request: CreateRequest = call.json()?;
    let stream = request.stream != Some(false);
    make(&call.state.models, request).await?;
    let success = Progress::new("success");
    if !stream {
        return Ok(reply(&success));
    }
    // It takes no time worth telling of.
    let mut lines = line(&Progress::new("writing manifest")).to_vec();
    lines.extend_from_slice(&line(&success));
    let mut response = Response::new(Body::from(lines));
    let content_type = HeaderValue::from_static(Stream::Lines.content_type());
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    Ok(response)
}

async fn make(models: &Models, request: CreateRequest) -> Result<()> {
    let name = named(request.model, request.name)?;
    let Some(from) = request.from.filter(|from| !from.is_empty()) else {
        let problem = "neither 'from' or 'files' was specified; Baton makes models from others, \
                       which `from` names";
        return Err(ApiError::invalid("from", problem));
    };
    let parameters = request.parameters.unwrap_or_default();
    // Whatever would be refused in a request is refused here.
    let checked: Options = serde_json::from_value(json!(parameters))
        .map_err(|error| ApiError::invalid("parameters", format!("parameters: {error}")))?;
    checked.sampling()?.resolve()?;
    checked.context()?;
    let license = request.license.map(|texts| texts.into_list().join("\n\n"));
    let custom = Custom { system: request.system, parameters, license };
    models.create(&from, &name, Some(custom)).await
}
