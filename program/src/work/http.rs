//! Sends a request for a task.

use std::rc::Rc;
use std::time::{Duration, SystemTime};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Method, Request, Response, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde_json::json;

use super::lease::Reason;
use super::outcome::{self, Failed, Outcome};
use super::stop::Phase;
use super::task::Task;
use super::{Context, LARGEST_RESULT, Results};
use crate::failure::Failure;

const CONNECT: Duration = Duration::from_secs(10);
/// How much of the body of a refusal is kept for the error of the task.
const EXPLANATION: usize = 8 * 1024;
/// The headers of a task that are passed on, for tracing.
const TRACING: [&str; 3] = ["traceparent", "tracestate", "baggage"];

/// Where requests go.
pub struct Target {
    uri: Uri,
    headers: HeaderMap,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl Target {
    pub fn new(url: &str, headers: &[String]) -> Result<Self, Failure> {
        let uri: Uri = url.parse().map_err(|why| Failure::new(format!("--http {url}: {why}")))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none() {
            return Err(Failure::new(format!("--http {url}: not an http or https URL")));
        }
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(Failure::new("--http: put credentials into --header \"Authorization: ...\""));
        }
        // For a port that is not one, requests would go to the default one.
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let port = authority.rsplit_once(']').map_or(authority, |(_, port)| port).split_once(':');
        if uri.port_u16().is_none() && port.is_some_and(|(_, port)| !port.is_empty()) {
            return Err(Failure::new(format!("--http {url}: the port is not a number from 0 to 65535")));
        }
        let mut map = HeaderMap::new();
        map.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        map.insert(USER_AGENT, HeaderValue::from_static(concat!("queue_ext/", env!("CARGO_PKG_VERSION"))));
        for header in headers {
            let parts = header.split_once(':').and_then(|(name, value)| {
                Some((name.trim().parse::<HeaderName>().ok()?, value.trim().parse::<HeaderValue>().ok()?))
            });
            // Without the value, which can be a secret.
            let name = header.split(':').next().unwrap_or_default();
            let (name, value) = parts.ok_or(Failure::new(format!("--header {name}: not NAME:VALUE")))?;
            map.insert(name, value);
        }
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT));
        connector.set_keepalive(Some(Duration::from_secs(30)));
        connector.set_nodelay(true);
        connector.enforce_http(false);
        let secure = HttpsConnectorBuilder::new()
            .with_provider_and_native_roots(rustls::crypto::ring::default_provider())
            .map_err(|error| Failure::new(format!("certificates of the system: {error}")))?
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(30))
            .build(secure);
        Ok(Self { uri, headers: map, client })
    }

    fn request(&self, task: &Task) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(Bytes::from(task.payload.clone())));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        let map = request.headers_mut();
        for name in TRACING {
            if let Some(Ok(value)) = task.header(name).map(HeaderValue::try_from) {
                map.insert(name, value);
            }
        }
        map.extend(self.headers.clone());
        let (id, token, attempt) = (task.lease.id, task.lease.token, i64::from(task.attempt));
        for (name, value) in [
            ("queue-task-id", id),
            ("queue-task-token", token),
            ("queue-task-attempt", attempt),
            ("idempotency-key", id),
        ] {
            map.insert(name, HeaderValue::from(value));
        }
        // A name can contain characters that a header cannot.
        let texts = [("queue-task-queue", Some(&task.lease.queue)), ("queue-task-kind", task.kind.as_ref())];
        for (name, text) in texts {
            if let Some(Ok(value)) = text.map(|text| HeaderValue::from_bytes(text.as_bytes())) {
                map.insert(name, value);
            }
        }
        request
    }
}

pub async fn run(context: &Rc<Context>, task: &Task, target: &Target) -> Outcome {
    let options = &context.options;
    let limit = async {
        match options.timeout {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    // What is not awaited any more is dropped, and with it the connection.
    tokio::select! {
        outcome = exchange(context, task, target) => outcome,
        reason = task.lease.reason() => Outcome::stopped(reason, options.timeout),
        () = limit => Outcome::stopped(Reason::TimedOut, options.timeout),
        () = context.stop.reached(Phase::Killing) => Outcome::stopped(Reason::Shutdown, options.timeout),
    }
}

async fn exchange(context: &Context, task: &Task, target: &Target) -> Outcome {
    let options = &context.options;
    let response = match target.client.request(target.request(task)).await {
        Ok(response) => response,
        Err(error) => return Outcome::failed(format!("no response: {}", causes(&error))),
    };
    let status = response.status();
    if status.is_success() {
        if options.results == Results::None {
            // Read so that the connection can be used again, unless there is much to read.
            return match read(response, EXPLANATION).await {
                Ok(_) => Outcome::Done(None),
                Err(why) => Outcome::failed(why),
            };
        }
        return match read(response, LARGEST_RESULT).await {
            Ok((body, cut)) => match outcome::result(&body, options.results, cut) {
                Ok(result) => Outcome::Done(result),
                Err(why) => Outcome::failed(why),
            },
            Err(why) => Outcome::failed(why),
        };
    }
    let permanent = options.discard_statuses.contains(&status.as_u16());
    let retry_in = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let retry_in = retry_in.and_then(|value| outcome::retry_after(value, SystemTime::now()));
    let mut error = format!("the response was {status}");
    if status.is_redirection() {
        error += ", and redirections are not followed";
    }
    // A body that cannot be read does not change the verdict.
    let body = read(response, EXPLANATION).await.map(|(body, _)| outcome::text(&body)).unwrap_or_default();
    if !body.is_empty() {
        error += &format!("\n{body}");
    }
    let retry_in = retry_in.filter(|_| !permanent);
    Outcome::Failed(Failed { error, details: Some(json!({"status": status.as_u16()})), retry_in, permanent })
}

/// The body up to a limit, and whether there was more.
async fn read(response: Response<Incoming>, most: usize) -> Result<(Vec<u8>, bool), String> {
    let (mut body, mut read) = (response.into_body(), Vec::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| format!("the response is incomplete: {}", causes(&error)))?;
        read.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        if read.len() > most {
            read.truncate(most);
            return Ok((read, true));
        }
    }
    Ok((read, false))
}

/// An error with what caused it.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}
