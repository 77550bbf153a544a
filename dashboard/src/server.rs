//! The web server: a few paths, and headers that restrict the browser to what the page needs.

use std::cell::Cell;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::database::Database;
use crate::filter::Filter;
use crate::guard::Guard;
use crate::journal::Visitor;
use crate::options::Options;
use crate::problem::Problem;
use crate::search::Search;
use crate::watch::Watch;
use crate::{actions, activity, assets, failures, schedules, task, workers};

/// The largest number of client connections, and limits for the time and the size of a request.
const VISITORS: usize = 256;
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a connection, which is for one request, may last, even if the client does not read the response. A
/// connection that waits for an action may last longer: an action has limits of its own.
const LONGEST_VISIT: Duration = Duration::from_secs(60);
/// A payload of a megabyte, with its quotes escaped.
const LONGEST_WISH: usize = 2 * 1024 * 1024;
/// The delay after a wrong token, against guessing.
const WRONG_TOKEN: Duration = Duration::from_millis(500);

/// Only the dashboard's own scripts and styles, no other host, no frames, and no string as HTML.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";
const HEADERS: &[(&str, &str)] = &[
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
];

/// A connection from a browser.
struct Visit {
    address: SocketAddr,
    acting: Cell<bool>,
}

pub struct App {
    pub guard: Guard,
    pub database: Rc<Database>,
    pub watch: Rc<Watch>,
    pub options: Options,
}

/// Serves until the process is stopped.
pub async fn serve(app: App) -> Result<(), String> {
    let address = app.options.listen;
    let listener = TcpListener::bind(address).await.map_err(|error| format!("{address}: {error}"))?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    let mode = if app.options.allow_actions { "with actions" } else { "read-only" };
    let scheme = if app.options.certificate.is_some() { "https" } else { "http" };
    eprintln!("queue dashboard: {scheme}://{address} ({mode})");
    if !address.ip().is_loopback() && app.options.certificate.is_none() {
        eprintln!(
            "queue dashboard: tokens and tasks are sent unencrypted; use --tls-cert, or a proxy with TLS"
        );
    }
    let (app, visitors) = (Rc::new(app), Arc::new(Semaphore::new(VISITORS)));
    loop {
        let Ok(place) = Arc::clone(&visitors).acquire_owned().await else { return Ok(()) };
        let Ok((stream, address)) = listener.accept().await else {
            // Probably too many open files.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let app = Rc::clone(&app);
        tokio::task::spawn_local(async move {
            let visit = Visit { address, acting: Cell::new(false) };
            let mut received = pin!(async {
                let Some(certificate) = &app.options.certificate else {
                    return app.receive(stream, &visit).await;
                };
                let handshake = certificate.acceptor().accept(stream);
                if let Ok(Ok(stream)) = tokio::time::timeout(PATIENCE, handshake).await {
                    app.receive(stream, &visit).await;
                }
            });
            while tokio::time::timeout(LONGEST_VISIT, &mut received).await.is_err() && visit.acting.get() {}
            drop(place);
        });
    }
}

impl App {
    /// Answers the request of a connection. An error only affects this client's connection.
    async fn receive(self: &Rc<Self>, stream: impl AsyncRead + AsyncWrite + Unpin, visit: &Visit) {
        let service = service_fn(|request| async { Ok::<_, Infallible>(self.answer(request, visit).await) });
        let _ = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), service)
            .await;
    }

    async fn answer(self: &Rc<Self>, request: Request<Incoming>, visit: &Visit) -> Response<Full<Bytes>> {
        let path = request.uri().path().to_owned();
        let result = match self.guard.check(request.method(), &path, request.headers()) {
            Ok(()) if path.starts_with("/api/") => self.call(&path, request, visit).await,
            Ok(()) => return page(request.method(), &path),
            Err(problem) => Err(problem),
        };
        let (status, body) = match result {
            Ok(value) => (StatusCode::OK, value),
            Err(problem) => {
                if problem.status == StatusCode::UNAUTHORIZED {
                    tokio::time::sleep(WRONG_TOKEN).await;
                }
                (problem.status, json!({"problem": problem.json()}))
            }
        };
        response(status, "application/json", Bytes::from(body.to_string()))
    }

    async fn call(
        self: &Rc<Self>,
        path: &str,
        request: Request<Incoming>,
        visit: &Visit,
    ) -> Result<Value, Problem> {
        let hide = self.options.hide_payloads;
        let database = &self.database;
        let query = request.uri().query().unwrap_or_default().to_owned();
        let asked = |name: &str| parameter(&query, name);
        match (request.method(), path) {
            (&Method::GET, "/api/session") => Ok(json!({
                "key": self.guard.key(), "actions": self.options.allow_actions, "hide_payloads": hide,
                "user": self.guard.user(request.headers())?, "process": self.watch.started(),
            })),
            (&Method::GET, "/api/overview") => Ok(self.watch.look().await),
            (&Method::GET, "/api/tasks") => {
                let filter = Filter::read(&asked, hide)?;
                Search { filter, after: asked("after") }.run(database, hide).await
            }
            (&Method::GET, "/api/task") => task::task(database, &asked("id"), hide).await,
            (&Method::GET, "/api/workers") => workers::workers(database, hide).await,
            (&Method::GET, "/api/activity") => {
                activity::activity(database, &asked("range"), &asked("queue"), &asked("kind")).await
            }
            (&Method::GET, "/api/failures") => {
                failures::failures(database, &asked("queue"), &asked("kind"), &asked("error")).await
            }
            (&Method::GET, "/api/queue") => task::queue(database, &asked("name")).await,
            (&Method::GET, "/api/schedule") => schedules::schedule(database, &asked("name"), hide).await,
            (&Method::GET, "/api/schedule_preview") => {
                schedules::preview(database, &asked("cron"), &asked("timezone")).await
            }
            (&Method::POST, "/api/act") => {
                if !self.options.allow_actions {
                    return Err(Problem::new(StatusCode::FORBIDDEN, "actions are disabled")
                        .hint("Start queue dashboard with --allow-actions."));
                }
                let visitor = Visitor { address: visit.address, user: self.guard.actor(request.headers())? };
                let wish = Limited::new(request.into_body(), LONGEST_WISH).collect().await;
                let wish =
                    wish.map_err(|_| Problem::bad("the request is too long or incomplete"))?.to_bytes();
                let wish: Value =
                    serde_json::from_slice(&wish).map_err(|_| Problem::bad("the request is not JSON"))?;
                visit.acting.set(true);
                let done = self.act(wish, visitor).await;
                visit.acting.set(false);
                let done = done?;
                if done["refresh"] != false {
                    self.watch.look_again().await;
                }
                Ok(done)
            }
            _ => Err(Problem::new(StatusCode::NOT_FOUND, "not found")),
        }
    }

    /// Runs an action in a task of its own: if the browser closes the connection meanwhile, the action is logged
    /// nevertheless.
    async fn act(self: &Rc<Self>, wish: Value, visitor: Visitor) -> Result<Value, Problem> {
        let app = Rc::clone(self);
        let action = tokio::task::spawn_local(async move {
            actions::act(&app.database, &wish, &visitor, app.options.hide_payloads).await
        });
        action.await.map_err(|_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the action failed"))?
    }
}

fn page(method: &Method, path: &str) -> Response<Full<Bytes>> {
    match assets::find(path) {
        Some((kind, text)) if method == Method::GET => {
            response(StatusCode::OK, kind, Bytes::from_static(text.as_bytes()))
        }
        _ => response(StatusCode::NOT_FOUND, "text/plain", Bytes::from_static(b"not found\n")),
    }
}

fn response(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    for (name, value) in HEADERS {
        headers.insert(*name, HeaderValue::from_static(value));
    }
    response
}

/// The value of a parameter in a query string; empty if it is missing.
fn parameter(query: &str, name: &str) -> String {
    let value = query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name);
    decoded(value.map_or("", |(_, value)| value))
}

/// Decodes percent signs. The browser encodes a blank as one, too.
fn decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().replace('\0', "")
}
