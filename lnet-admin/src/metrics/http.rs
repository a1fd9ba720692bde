//! Pages of metrics over HTTP, on the control plane's thread.

use std::cell::RefCell;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, warn};

use super::Control;
use super::page::Form;

/// Connections at once; others wait in the kernel.
const CONNECTIONS: usize = 256;
/// Connections that the kernel keeps until they are accepted.
const BACKLOG: u32 = 1024;
/// Time that a request may take to arrive.
const REQUEST_TIME: Duration = Duration::from_secs(2);
/// Time that a connection may take from begin to end.
const CONNECTION_TIME: Duration = Duration::from_secs(15);
/// Bytes of a request at most.
const REQUEST_BYTES: usize = 16 << 10;
/// Age up to which a page serves other clients too.
const PAGE_AGE: Duration = Duration::from_millis(200);
/// Time to wait where the kernel refuses to accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The newest page of each form, with the time when it was made.
#[derive(Default)]
struct Pages(RefCell<Vec<(Form, Instant, Bytes)>>);

impl Pages {
    fn fresh(&self, form: Form) -> Option<Bytes> {
        let pages = self.0.borrow();
        let newest = pages.iter().find(|(of, at, _)| *of == form && at.elapsed() <= PAGE_AGE);
        newest.map(|(.., page)| page.clone())
    }

    fn put(&self, form: Form, at: Instant, page: Bytes) {
        let mut pages = self.0.borrow_mut();
        pages.retain(|(of, ..)| *of != form);
        pages.push((form, at, page));
    }
}

/// State that the connections share.
struct Exporter<'a> {
    control: &'a Control,
    pages: Pages,
    /// Room for the one that has the node counted.
    counting: Mutex<()>,
}

/// Listens for clients; an address that was in use a moment ago is free.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves pages of a node's metrics, until it is dropped.
pub(crate) async fn serve(listener: &TcpListener, control: &Control) {
    let exporter = Exporter { control, pages: Pages::default(), counting: Mutex::new(()) };
    let mut connections = FuturesUnordered::new();
    loop {
        let has_room = connections.len() < CONNECTIONS;
        tokio::select! {
            Some(()) = connections.next() => {}
            accepted = listener.accept(), if has_room => match accepted {
                Ok((stream, _)) => connections.push(exporter.connection(stream)),
                Err(error) => pause(&error).await,
            },
        }
    }
}

async fn pause(error: &io::Error) {
    warn!(%error, "metrics: cannot accept connections");
    sleep(ACCEPT_PAUSE).await;
}

impl Exporter<'_> {
    /// Answers the one request of a connection.
    async fn connection(&self, stream: TcpStream) {
        let answer = service_fn(async |request| Ok::<_, Infallible>(self.answer(&request).await));
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(REQUEST_TIME);
        builder.keep_alive(false).max_buf_size(REQUEST_BYTES);
        let served = builder.serve_connection(TokioIo::new(stream), answer);
        match timeout(CONNECTION_TIME, served).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(%error, "metrics: a client went, or makes no sense"),
            Err(_) => debug!("metrics: a client took too long"),
        }
    }

    async fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "GET and HEAD are expected\n");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        if request.uri().path() != "/metrics" {
            return plain(StatusCode::NOT_FOUND, "The metrics are at /metrics\n");
        }
        let accepted = request.headers().get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let form = Form::accepted(&accepted.collect::<Vec<_>>().join(","));
        match self.page(form).await {
            Ok(page) => told(StatusCode::OK, form.content_type(), page),
            Err(why) => plain(StatusCode::SERVICE_UNAVAILABLE, &format!("{why}\n")),
        }
    }

    /// A page, counted anew unless there is one that is fresh.
    async fn page(&self, form: Form) -> Result<Bytes, String> {
        let _alone = self.counting.lock().await;
        if let Some(page) = self.pages.fresh(form) {
            return Ok(page);
        }
        let page = self.control.metrics_page().await.map_err(|refusal| refusal.to_string())?;
        let page = Bytes::from(page.text(form).map_err(|error| error.to_string())?);
        self.pages.put(form, Instant::now(), page.clone());
        Ok(page)
    }
}

fn plain(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    told(status, "text/plain; charset=utf-8", Bytes::from(text.to_owned()))
}

fn told(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
