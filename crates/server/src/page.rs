//! The web page at `/`: a few files that are part of the program.

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;

use crate::api::Api;
use crate::call::Call;
use crate::ollama::GREETING;
use crate::routes::Route;
use crate::{ApiError, Kind, Result};

/// What the page may load and talk to: this server only. No frame of another page shows it.
const POLICY: &str =
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!("../page/", $name)))),*]
    };
}

/// The page's files by their names.
const FILES: &[(&str, &[u8])] = files![
    "api.js",
    "chart.js",
    "chat.js",
    "choice.js",
    "code.js",
    "completion.js",
    "composer.js",
    "content.css",
    "dom.js",
    "format.js",
    "icon.svg",
    "inline.js",
    "key.js",
    "library.js",
    "main.js",
    "markdown.js",
    "message.js",
    "models.js",
    "numbers.js",
    "settings.js",
    "sidebar.js",
    "status.js",
    "storage.js",
    "store.js",
    "style.css",
    "theme.js",
];

/// The routes of the page. They need no key, as a browser sends none with them.
pub(crate) fn routes() -> Vec<Route> {
    let front = "The web page for browsers, a greeting for programs";
    let file = "A file of the web page";
    vec![
        Route::get(Api::Baton, "/", front, front_page).public(),
        Route::get(Api::Baton, "/assets/{name}", file, asset).public(),
    ]
}

async fn front_page(call: Call) -> Result<Response> {
    let wants_page = call.header("accept").is_some_and(|accept| accept.contains("text/html"));
    let mut reply = match wants_page {
        true => file("index.html", include_bytes!("../page/index.html")),
        false => file("greeting.txt", GREETING.as_bytes()),
    };
    reply.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
    Ok(reply)
}

async fn asset(call: Call) -> Result<Response> {
    let name = call.path("name")?;
    match FILES.iter().find(|(known, _)| *known == name) {
        Some((name, bytes)) => Ok(file(name, bytes)),
        None => Err(ApiError::new(Kind::NotFound, format!("the page has no file {name:?}"))),
    }
}

fn file(name: &str, bytes: &'static [u8]) -> Response {
    let content_type = match name.rsplit_once('.') {
        Some((_, "html")) => "text/html; charset=utf-8",
        Some((_, "js")) => "text/javascript; charset=utf-8",
        Some((_, "css")) => "text/css; charset=utf-8",
        Some((_, "svg")) => "image/svg+xml",
        _ => "text/plain; charset=utf-8",
    };
    let mut reply = Response::new(Body::from(bytes));
    let headers = reply.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, content_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        // A new version of the program has new files under the same names.
        (header::CACHE_CONTROL, "no-cache"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    reply
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tower::ServiceExt;

    use super::*;
    use crate::testing::Home;
    use crate::{ServeOptions, Server};

    async fn get(path: &str, accept: &str) -> (u16, String, String) {
        let models = Home::new().models().await;
        let options = ServeOptions { api_key: Some("secret".into()), ..ServeOptions::default() };
        let request = axum::http::Request::get(path).header("accept", accept);
        let request = request.body(Body::empty()).unwrap();
        let reply = Server::new(models, options).router().oneshot(request).await.unwrap();
        let content_type = reply.headers()["content-type"].to_str().unwrap().to_owned();
        let status = reply.status().as_u16();
        let body = axum::body::to_bytes(reply.into_body(), 1 << 20).await.unwrap();
        (status, content_type, String::from_utf8(body.to_vec()).unwrap())
    }

    #[test]
    fn every_file_of_the_page_is_part_of_the_program() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/page");
        let entries = std::fs::read_dir(folder).unwrap();
        let there: BTreeSet<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        let known = FILES.iter().map(|(name, _)| *name).chain(["index.html"]);
        assert_eq!(there, known.map(str::to_owned).collect());
    }

    #[tokio::test]
    async fn browsers_get_the_page_and_programs_a_greeting() {
        let (status, content_type, page) = get("/", "text/html,application/xhtml+xml").await;
        assert_eq!((status, content_type.as_str()), (200, "text/html; charset=utf-8"));
        assert!(page.starts_with("<!doctype html>"));
        let (status, content_type, greeting) = get("/", "*/*").await;
        assert_eq!((status, content_type.as_str()), (200, "text/plain; charset=utf-8"));
        assert_eq!(greeting, "Ollama is running");
    }

    #[tokio::test]
    async fn the_page_finds_its_files_and_nothing_else() {
        let page = include_str!("../page/index.html");
        let names = page.split("assets/").skip(1).map(|rest| rest.split('"').next().unwrap());
        let names: Vec<&str> = names.collect();
        assert!(names.len() > 3);
        for name in names {
            assert_eq!(get(&format!("/assets/{name}"), "*/*").await.0, 200, "{name}");
        }
        for path in ["/assets/nothing.js", "/assets/..%2Findex.html", "/assets/index.html"] {
            assert_eq!(get(path, "*/*").await.0, 404, "{path}");
        }
    }
}
