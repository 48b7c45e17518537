//! Sockets: accepting, serving and stopping.

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
    access::{Faults, Gate, OneKey},
    config::Config,
    counters::{CounterSnapshot, Counters},
    front::Front,
    operations::Operations,
    shape::Shaper,
};

/// How long requests under way may still take once a stop was asked for.
const GRACE: Duration = Duration::from_secs(3);
/// hyper asks a body for more while less than this waits to be written, so it bounds memory and by
/// how much a byte counted can be ahead of a byte written.
const CONNECTION_BUFFER_SIZE: usize = 64 << 10;

/// Serves until `shutdown` completes, then lets requests under way finish for some seconds.
///
/// Refuses to listen anywhere but on loopback: the credentials are public.
pub async fn run(
    listener: TcpListener,
    config: Config,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    serve(listener, config, Arc::default(), shutdown).await
}

async fn serve(
    listener: TcpListener,
    config: Config,
    counters: Arc<Counters>,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let address = listener.local_addr().context("ask for the address to listen on")?;
    ensure!(
        address.ip().is_loopback(),
        "a dev origin's credentials are public, so it must not listen on {address}; \
         use 127.0.0.1:{}",
        address.port()
    );
    config.check()?;
    let front = Arc::new(front(config, counters));

    let (stop, stopping) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve_connection(
                        stream, Arc::clone(&front), stopping.clone(),
                    ));
                }
                // Out of descriptors, most likely: wait for some to be returned.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.join_next() => {}
            () = &mut shutdown => break,
        }
    }
    drop(listener);
    drop(stop);
    let _ = timeout(GRACE, async { while connections.join_next().await.is_some() {} }).await;
    Ok(())
}

fn front(config: Config, counters: Arc<Counters>) -> Front {
    let shaper = Arc::new(Shaper::new(config.bandwidth));
    let operations = Operations::new(config.root, Arc::clone(&counters), shaper.piece_size());
    let mut builder = S3ServiceBuilder::new(operations);
    builder
        .set_auth(OneKey { access_key: config.access_key, secret_key: config.secret_key.into() });
    builder.set_access(Gate(Faults::new(config.fail_rate, config.seed)));
    Front { s3: builder.build(), counters, shaper, latency: config.latency }
}

async fn serve_connection(stream: TcpStream, front: Arc<Front>, mut stopping: watch::Receiver<()>) {
    // Without this a small answer can wait 40 ms for the client's delayed ACK (see the crate's head).
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let service = service_fn(move |request| {
        let front = Arc::clone(&front);
        async move { front.handle(request).await }
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
        // A client that went away, or a body that was cut: both are everyday life here.
        tracing::debug!(%error, "a connection ended early");
    }
}

/// A dev origin on a free loopback port and threads of its own; stopped when dropped.
///
/// Made for tests and demos, blocking or not. In a program with a runtime, [`run`] is the way.
#[derive(Debug)]
pub struct DevOrigin {
    address: SocketAddr,
    counters: Arc<Counters>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<anyhow::Result<()>>>,
}

impl DevOrigin {
    /// Starts serving; on return, requests are answered.
    pub fn start(config: Config) -> anyhow::Result<Self> {
        config.check()?;
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .context("listen on a free loopback port")?;
        listener.set_nonblocking(true).context("make the listener non-blocking")?;
        let address = listener.local_addr().context("ask for the port")?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("dev-origin")
            .enable_all()
            .build()
            .context("start the dev origin's runtime")?;
        let counters = Arc::<Counters>::default();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new()
            .name("dev-origin".to_owned())
            .spawn({
                let counters = Arc::clone(&counters);
                move || {
                    runtime.block_on(async {
                        let listener = TcpListener::from_std(listener)
                            .context("hand the listener to the runtime")?;
                        // A dropped sender means stop, too.
                        let stopped: Pin<Box<dyn Future<Output = ()> + Send>> =
                            Box::pin(async { stopped.await.unwrap_or(()) });
                        serve(listener, config, counters, stopped).await
                    })
                }
            })
            .context("start the dev origin's thread")?;
        Ok(Self { address, counters, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens, as `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has done since the start or the last reset.
    pub fn counters(&self) -> CounterSnapshot {
        self.counters.snapshot()
    }

    /// Starts counting anew.
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
            tracing::warn!(address = %self.address, "the dev origin did not stop in good order");
        }
    }
}
