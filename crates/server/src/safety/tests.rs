use std::time::Duration;

use axum::http::Request;
use bytes::Bytes;
use futures_util::stream;
use tower::ServiceExt;

use super::*;
use crate::Server;
use crate::testing::Home;

/// A server's answer to a request that is made of a method, a path and headers.
async fn sent(
    options: &ServeOptions,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> Response {
    let home = Home::new();
    let models = home.models().await;
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let router = Server::new(models, options.clone()).router();
    router.oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
}

async fn status(options: &ServeOptions, headers: &[(&str, &str)]) -> u16 {
    sent(options, "GET", "/v1/models", headers).await.status().as_u16()
}

#[tokio::test]
async fn only_names_that_no_stranger_can_own_are_taken() {
    let options = ServeOptions { allowed_hosts: vec!["box".into()], ..ServeOptions::default() };
    for host in [
        "localhost",
        "localhost:11434",
        "LOCALHOST.",
        "a.localhost:80",
        "127.0.0.1:11434",
        "192.168.1.7",
        "[::1]:11434",
        "host.docker.internal:11434",
        "box:80",
    ] {
        assert_eq!(status(&options, &[("host", host)]).await, 200, "{host}");
    }
    for host in ["evil.example", "evil.example:11434", "notlocalhost", "localhost.evil.example", ""]
    {
        assert_eq!(status(&options, &[("host", host)]).await, 403, "{host}");
    }
    assert_eq!(status(&options, &[]).await, 200, "programs need not name it");
    let any = ServeOptions { allowed_hosts: vec!["*".into()], ..ServeOptions::default() };
    assert_eq!(status(&any, &[("host", "evil.example")]).await, 200);
}

#[tokio::test]
async fn pages_of_others_may_not_ask_unless_allowed() {
    let closed = ServeOptions::default();
    let own = [("host", "localhost:11434"), ("origin", "http://localhost:11434")];
    assert_eq!(status(&closed, &own).await, 200);
    for origin in ["http://evil.example", "http://localhost:3000", "null", "http://localhost", ""] {
        let headers = [("host", "localhost:11434"), ("origin", origin)];
        assert_eq!(status(&closed, &headers).await, 403, "{origin}");
        let reply = sent(&closed, "OPTIONS", "/v1/models", &headers).await;
        assert!(!reply.headers().contains_key("access-control-allow-origin"));
    }
    let open = ServeOptions {
        cors_origins: vec!["http://localhost:3000".into()],
        ..ServeOptions::default()
    };
    let headers = [("host", "localhost:11434"), ("origin", "http://localhost:3000")];
    let reply = sent(&open, "GET", "/v1/models", &headers).await;
    assert_eq!(reply.headers()["access-control-allow-origin"], "http://localhost:3000");
    assert_eq!(reply.status(), 200);
    let asked = [
        headers[0],
        headers[1],
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type"),
    ];
    let reply = sent(&open, "OPTIONS", "/v1/chat/completions", &asked).await;
    assert_eq!(reply.status(), 204);
    assert_eq!(reply.headers()["access-control-allow-headers"], "authorization,content-type");
    let other = [("host", "localhost:11434"), ("origin", "http://localhost:3001")];
    assert_eq!(status(&open, &other).await, 403);
}

#[tokio::test]
async fn a_key_is_wanted_where_there_is_one() {
    let options = ServeOptions { api_key: Some("secret".into()), ..ServeOptions::default() };
    for good in [
        ("authorization", "Bearer secret"),
        ("authorization", "bearer secret"),
        ("x-api-key", "secret"),
    ] {
        assert_eq!(status(&options, &[good]).await, 200, "{good:?}");
    }
    for bad in [
        ("authorization", "Bearer Secret"),
        ("authorization", "Bearer secret2"),
        ("authorization", "secret"),
        ("authorization", "Basic secret"),
        ("authorization", "Bearer "),
        ("x-api-key", ""),
        ("accept", "secret"),
    ] {
        let reply = sent(&options, "GET", "/v1/models", &[bad]).await;
        assert_eq!(reply.status(), 401, "{bad:?}");
        assert_eq!(reply.headers()["www-authenticate"], "Bearer");
    }
    let public = sent(&options, "GET", "/openapi.json", &[]).await;
    assert_eq!(public.status(), 200);
}

#[tokio::test]
async fn a_body_must_be_small_and_quick() {
    let options = ServeOptions {
        max_body: 10,
        body_timeout: Duration::from_millis(50),
        ..ServeOptions::default()
    };
    assert_eq!(read_body(&options, Body::from("0123456789")).await.unwrap(), "0123456789");
    let large = read_body(&options, Body::from("0123456789a")).await.unwrap_err();
    assert_eq!(large.kind, Kind::TooLarge);
    let never = stream::pending::<Result<Bytes, std::io::Error>>();
    let slow = read_body(&options, Body::from_stream(never)).await.unwrap_err();
    assert_eq!(slow.kind, Kind::Timeout);
    let broken = stream::iter([Err::<Bytes, _>(std::io::Error::other("gone"))]);
    let broken = read_body(&options, Body::from_stream(broken)).await.unwrap_err();
    assert_eq!(broken.kind, Kind::Invalid);
}

#[tokio::test]
async fn what_is_not_there_is_told_in_the_words_of_the_interface() {
    let options = ServeOptions::default();
    for (method, path, code) in [
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/chat/completions", 405),
        ("PUT", "/v1/models", 405),
    ] {
        let reply = sent(&options, method, path, &[]).await;
        assert_eq!(reply.status(), code, "{path}");
        assert_eq!(reply.headers().contains_key("allow"), code == 405, "{path}");
        assert_eq!(reply.headers()["x-content-type-options"], "nosniff");
        let body = to_bytes(reply.into_body(), 1 << 16).await.unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert!(body["error"]["message"].as_str().unwrap().contains(path));
    }
}
