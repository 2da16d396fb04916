//! Answers HTTP requests to the status listener.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use sha2::{Digest, Sha256};

use super::{Snapshot, Watched, json, metrics};

const PAGE: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("page.js");

const HTML: &str = "text/html; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
/// Content type of Prometheus' text format.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Header of a request that cancels a statement. Other sites' pages cannot set it.
const CANCEL_HEADER: &str = "x-forebay";

const NOT_FOUND: &str = "Not found. This server has /, /status.json, /metrics and /health.\n";
const READ_ONLY: &str = "Only GET and HEAD are supported.\n";
const WRONG_CANCEL: &str =
    "Cancel a statement with the header `X-Forebay: cancel` and its number: /cancel?statement=7\n";
const NOT_RUNNING: &str = "This statement is not running.\n";
const NOT_FROM_HERE: &str =
    "Statements can be cancelled only where the status page has a loopback address.\n";
const BROKEN: &str = "The status could not be read; the log has the error.\n";
const WRONG_HOST: &str =
    "Use an IP address or localhost to reach this server, not another host name.\n";

/// Content security policy. Browsers may run only the page's own script, apply only its own style sheet, and fetch only
/// from this server.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let style = BASE64_STANDARD.encode(Sha256::digest(style_sheet(PAGE)));
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'sha256-{style}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    HeaderValue::try_from(policy).expect("base64 is plain text")
});

/// Returns the text of the style sheet in a page.
fn style_sheet(page: &str) -> &str {
    let begin = page.split_once("<style>").map_or("", |(_, rest)| rest);
    begin.split_once("</style>").map_or("", |(style, _)| style)
}

/// Answers a request. Never fails: a wrong request gets an answer with an error status.
pub async fn answer(
    watched: &Arc<Watched>,
    request: Request<Incoming>,
) -> Result<Response<String>, Infallible> {
    let mut answer = route(watched, &request).await;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, POLICY.clone());
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert(
        "cross-origin-resource-policy",
        HeaderValue::from_static("same-origin"),
    );
    Ok(answer)
}

async fn route(watched: &Arc<Watched>, request: &Request<Incoming>) -> Response<String> {
    if watched.is_loopback && !is_local_name(request.headers()) {
        return reply(StatusCode::FORBIDDEN, TEXT, WRONG_HOST);
    }
    if request.method() == Method::POST && request.uri().path() == "/cancel" {
        return cancel(watched, request);
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut refusal = reply(StatusCode::METHOD_NOT_ALLOWED, TEXT, READ_ONLY);
        let allowed = HeaderValue::from_static("GET, HEAD");
        refusal.headers_mut().insert(header::ALLOW, allowed);
        return refusal;
    }
    match request.uri().path() {
        "/" => reply(StatusCode::OK, HTML, PAGE),
        "/status.js" => reply(StatusCode::OK, JAVASCRIPT, SCRIPT),
        "/status.json" => {
            let problems = problems(watched).await;
            let tables = watched.tables.json(watched.is_loopback).await;
            let draw = move |watched: &Watched, snapshot: &Snapshot| {
                json::page(&watched.door, snapshot, &problems, tables).to_string()
            };
            picture(watched, JSON, draw).await
        }
        "/metrics" => {
            let draw = |watched: &Watched, snapshot: &Snapshot| metrics::page(watched, snapshot);
            picture(watched, METRICS, draw).await
        }
        "/health" => health(&problems(watched).await),
        _ => reply(StatusCode::NOT_FOUND, TEXT, NOT_FOUND),
    }
}

/// Cancels a statement.
fn cancel(watched: &Watched, request: &Request<Incoming>) -> Response<String> {
    if !watched.is_loopback {
        return reply(StatusCode::FORBIDDEN, TEXT, NOT_FROM_HERE);
    }
    let query = request.uri().query().unwrap_or_default();
    let number = query.strip_prefix("statement=");
    let number = number.and_then(|number| number.parse().ok());
    let is_asked = request.headers().get(CANCEL_HEADER);
    match number.filter(|_| is_asked.is_some_and(|value| value == "cancel")) {
        None => reply(StatusCode::BAD_REQUEST, TEXT, WRONG_CANCEL),
        Some(number) if watched.tables.cancel(number) => {
            reply(StatusCode::OK, JSON, "{\"cancelled\":true}\n")
        }
        Some(_) => reply(StatusCode::NOT_FOUND, TEXT, NOT_RUNNING),
    }
}

async fn problems(watched: &Watched) -> Vec<String> {
    let (process, door) = (&watched.process, &watched.door);
    watched.health.problems(process, door).await
}

/// Takes a snapshot of the status and formats it, on a blocking thread.
async fn picture(
    watched: &Arc<Watched>,
    kind: &'static str,
    draw: impl FnOnce(&Watched, &Snapshot) -> String + Send + 'static,
) -> Response<String> {
    // The lock is held until the snapshot is formatted, even if the client disconnects before.
    let alone = watched.drawing.clone().lock_owned().await;
    let watched = watched.clone();
    let drawn = tokio::task::spawn_blocking(move || {
        let _alone = alone;
        draw(&watched, &watched.snapshot())
    });
    match drawn.await {
        Ok(drawn) => reply(StatusCode::OK, kind, drawn),
        Err(error) => {
            tracing::error!(%error, "the status could not be read");
            reply(StatusCode::INTERNAL_SERVER_ERROR, TEXT, BROKEN)
        }
    }
}

fn health(problems: &[String]) -> Response<String> {
    let (code, word) = if problems.is_empty() {
        (StatusCode::OK, "ok")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "failing")
    };
    let body = serde_json::json!({ "status": word, "problems": problems });
    reply(code, JSON, format!("{body}\n"))
}

fn reply(code: StatusCode, kind: &'static str, body: impl Into<String>) -> Response<String> {
    let mut reply = Response::new(body.into());
    *reply.status_mut() = code;
    let kind = HeaderValue::from_static(kind);
    reply.headers_mut().insert(header::CONTENT_TYPE, kind);
    reply
}

/// Returns whether the `Host` of a request is an address or `localhost`. Refusing other hosts blocks DNS-rebinding
/// attacks, in which the name of another site is changed to resolve to this machine.
fn is_local_name(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST) else {
        return true;
    };
    host.to_str().is_ok_and(|host| {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let address = name.trim_start_matches('[').trim_end_matches(']');
        name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_local(host: &str) -> bool {
        let value = HeaderValue::try_from(host).expect("plain text");
        is_local_name(&HeaderMap::from_iter([(header::HOST, value)]))
    }

    #[test]
    fn other_names_for_this_machine_are_refused() {
        for host in [
            "localhost",
            "LocalHost:9216",
            "127.0.0.1:9216",
            "[::1]:80",
            "[::1]",
        ] {
            assert!(is_local(host), "{host}");
        }
        for host in [
            "example.com",
            "localhost.example.com:80",
            "127.0.0.1.example.com",
            "",
        ] {
            assert!(!is_local(host), "{host}");
        }
        assert!(is_local_name(&HeaderMap::new()));
    }

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        assert!(!style_sheet(PAGE).is_empty());
        for text in [PAGE, SCRIPT] {
            let name_of_svg = "http://www.w3.org/2000/svg";
            assert!(!text.replace(name_of_svg, "").contains("://"), "a URL");
            assert!(!text.contains("innerHTML") && !text.contains(" style="));
        }
    }
}
