//! The server: accepts, serves and closes connections.

use std::{
    future::Future,
    net::{Ipv4Addr, SocketAddr},
    pin::{Pin, pin},
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use s3s::service::S3ServiceBuilder;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{oneshot, watch},
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    access::{AccessCheck, Faults, KeyAuth},
    config::{Config, Fault},
    counters::{CounterSnapshot, Counters},
    frontend::Frontend,
    operations::Operations,
    shaper::Shaper,
};

/// Time for requests in progress to finish after a stop.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(3);
/// Write buffer of a connection. It bounds memory, and by how many bytes the counters can be ahead
/// of the socket.
const CONNECTION_BUFFER_SIZE: usize = 64 << 10;

/// Serves until `shutdown` completes, then lets requests in progress finish for 3 s.
///
/// Listens on loopback only, because the credentials are published.
pub async fn run(
    listener: TcpListener,
    config: Config,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let faults = Arc::new(Faults::of(&config));
    serve(listener, config, Arc::default(), faults, shutdown).await
}

async fn serve(
    listener: TcpListener,
    config: Config,
    counters: Arc<Counters>,
    faults: Arc<Faults>,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let address = listener.local_addr().context("read the listener's address")?;
    ensure!(
        address.ip().is_loopback(),
        "a dev origin's credentials are public, so it must not listen on {address}; \
         use 127.0.0.1:{}",
        address.port()
    );
    config.check()?;
    let frontend = Arc::new(frontend(config, counters, faults));

    let (stop, stopping) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve_connection(
                        stream, Arc::clone(&frontend), stopping.clone(),
                    ));
                }
                // Probably out of descriptors: wait until some are closed.
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.join_next() => {}
            () = &mut shutdown => break,
        }
    }
    drop(listener);
    drop(stop);
    let _ =
        timeout(SHUTDOWN_GRACE, async { while connections.join_next().await.is_some() {} }).await;
    Ok(())
}

fn frontend(config: Config, counters: Arc<Counters>, faults: Arc<Faults>) -> Frontend {
    let shaper = Arc::new(Shaper::new(config.bandwidth));
    let operations = Operations::new(config.root, Arc::clone(&counters), shaper.buffer_size());
    let mut builder = S3ServiceBuilder::new(operations);
    let limited = config.limited_keys.iter();
    let keys = limited.map(|key| (key.access_key.clone(), key.secret_key.clone().into()));
    let unlimited = (config.access_key, config.secret_key.into());
    builder.set_auth(KeyAuth(keys.chain([unlimited]).collect()));
    builder.set_access(AccessCheck { faults, limited: config.limited_keys });
    Frontend { s3: builder.build(), counters, shaper, latency: config.latency }
}

async fn serve_connection(
    stream: TcpStream,
    frontend: Arc<Frontend>,
    mut stopping: watch::Receiver<()>,
) {
    // Without this a small answer can wait 40 ms for the client's delayed ACK (see `lib.rs`).
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY failed");
    }
    let service = service_fn(move |request| {
        let frontend = Arc::clone(&frontend);
        async move { frontend.handle(request).await }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .max_buf_size(CONNECTION_BUFFER_SIZE)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        _ = stopping.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        // The client disconnected, or the body was truncated on purpose.
        tracing::debug!(%error, "connection ended early");
    }
}

/// A dev origin on a free loopback port, with its own threads. Stopped when dropped.
///
/// For tests and demos, blocking or not. A program with a runtime uses [`run`].
#[derive(Debug)]
pub struct DevOrigin {
    address: SocketAddr,
    counters: Arc<Counters>,
    faults: Arc<Faults>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<anyhow::Result<()>>>,
}

impl DevOrigin {
    /// Starts serving. Requests are answered from its return on.
    pub fn start(config: Config) -> anyhow::Result<Self> {
        config.check()?;
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .context("listen on a free loopback port")?;
        listener.set_nonblocking(true).context("make the listener non-blocking")?;
        let address = listener.local_addr().context("read the listener's port")?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("dev-origin")
            .enable_all()
            .build()
            .context("start the dev origin's runtime")?;
        let counters = Arc::<Counters>::default();
        let faults = Arc::new(Faults::of(&config));
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new()
            .name("dev-origin".to_owned())
            .spawn({
                let (counters, faults) = (Arc::clone(&counters), Arc::clone(&faults));
                move || {
                    runtime.block_on(async {
                        let listener = TcpListener::from_std(listener)
                            .context("hand the listener to the runtime")?;
                        // A dropped sender stops it, too.
                        let stopped: Pin<Box<dyn Future<Output = ()> + Send>> =
                            Box::pin(async { stopped.await.unwrap_or(()) });
                        serve(listener, config, counters, faults, stopped).await
                    })
                }
            })
            .context("start the dev origin's thread")?;
        Ok(Self { address, counters, faults, stop: Some(stop), thread: Some(thread) })
    }

    /// The endpoint, as `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counters since the start or the last reset.
    pub fn counters(&self) -> CounterSnapshot {
        self.counters.snapshot()
    }

    /// The next `GetObject` requests fail in these ways, in order.
    pub fn inject(&self, faults: impl IntoIterator<Item = Fault>) {
        self.faults.inject(faults);
    }

    /// Sets all counters to 0.
    pub fn reset_counters(&self) {
        self.counters.reset();
    }
}

impl Drop for DevOrigin {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && !matches!(thread.join(), Ok(Ok(())))
        {
            tracing::warn!(address = %self.address, "dev origin stopped with an error");
        }
    }
}
