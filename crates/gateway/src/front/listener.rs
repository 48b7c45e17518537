//! Listener: accepts connections within the limits, with TLS if configured, and drains them.

use std::{
    convert::Infallible, future::Future, net::SocketAddr, pin::pin, sync::Arc, time::Duration,
};

use anyhow::Context as _;
use forebay_transport::tcp::TcpAcceptor;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::watch,
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

use super::{
    Domains, EndpointLimits, Front, limits::ConnectionPermit, route::GatewayRoute,
    stall_guard::StallGuard,
};
use crate::{
    config::GatewayConfig,
    credentials::IdentitySource,
    metrics::{GatewayCounters, GatewayRows, counter_rows},
    objects::{ObjectCache, ObjectCacheSettings},
    origin_client::{OriginClient, OriginSettings},
    origin_tls,
    tenants::AccessKeys,
};

/// Time for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the head of a request, from its first byte; also the life of an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_mins(1);
/// Longest head of a request: a key of 1,024 bytes takes 3 KiB, a presigned URL 1 KiB more.
const BUFFER_SIZE_MAX: usize = 128 << 10;
/// Connections beyond the limit that receive 503. Further ones are closed.
const REFUSED_MAX: usize = 64;
/// Life of a connection beyond the limit.
const REFUSED_TIMEOUT: Duration = Duration::from_secs(5);

/// A gateway that is ready to serve.
pub struct Gateway {
    front: Arc<Front>,
    cache: Arc<ObjectCache>,
    acceptor: TcpAcceptor,
    address: SocketAddr,
}

impl Gateway {
    /// Reads the files of a configuration, opens the port and the devices. Flash is recovered in
    /// the background: until that is done, requests pass to the origin.
    pub async fn bind(
        config: &GatewayConfig,
        settings: &ObjectCacheSettings,
    ) -> anyhow::Result<Self> {
        let Opened { keys, identities, origin_tls, server_tls } = Opened::read(config)?;
        let counters = Arc::new(GatewayCounters::default());
        let settings_of_origin = OriginSettings {
            endpoint: config.endpoint.clone(),
            region: config.region.clone(),
            addressing: config.addressing,
            first_byte_timeout: config.first_byte_timeout,
            progress_timeout: config.progress_timeout,
            tls: origin_tls,
        };
        let origin = OriginClient::new(settings_of_origin, identities, Arc::clone(&counters));
        let acceptor =
            TcpAcceptor::bind(config.listen, server_tls).await.context("the S3 endpoint")?;
        let address = acceptor.address().context("the S3 endpoint")?;
        let cache = Arc::new(ObjectCache::open(settings, origin.clone()).await?);
        let route = GatewayRoute { keys, origin, cache: Arc::clone(&cache), counters };
        let bytes_max = config.memory.0;
        let limits = EndpointLimits::new(config.max_connections, config.max_requests, bytes_max);
        let domains = Domains::new(config.domains.clone());
        let front = Arc::new(Front::new(route, domains, limits, config.progress_timeout));
        Ok(Self { front, cache, acceptor, address })
    }

    /// Reads and checks all files of a configuration.
    pub fn check_files(config: &GatewayConfig) -> anyhow::Result<()> {
        Opened::read(config).map(drop)
    }

    /// The address of the endpoint.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The object path.
    pub fn cache(&self) -> &Arc<ObjectCache> {
        &self.cache
    }

    /// A function that reads the metrics.
    pub fn metrics(&self) -> impl Fn() -> GatewayRows + Send + Sync + 'static {
        let (front, cache) = (Arc::clone(&self.front), Arc::clone(&self.cache));
        move || GatewayRows {
            gauges: front.limits().gauges().rows(),
            counters: counter_rows(front.counters(), cache.counters()),
        }
    }

    /// Serves until `stop` completes; then requests in progress have `grace` to finish.
    pub async fn run(self, stop: impl Future<Output = ()>, grace: Duration) {
        let Self { front, acceptor, .. } = self;
        let (stopping, is_stopping) = watch::channel(());
        let (mut connections, mut refused) = (JoinSet::new(), JoinSet::new());
        let mut stop = pin!(stop);
        loop {
            tokio::select! {
                (socket, tls) = acceptor.accept() => {
                    let Some(permit) = front.limits().connection() else {
                        front.counters().gateway_connections_over_limit.one();
                        if refused.len() < REFUSED_MAX {
                            let (front, stopping) = (Arc::clone(&front), is_stopping.clone());
                            let served = connection(front, socket, tls, None, stopping);
                            refused.spawn(timeout(REFUSED_TIMEOUT, served));
                        }
                        continue;
                    };
                    front.counters().gateway_connections.one();
                    let (front, stopping) = (Arc::clone(&front), is_stopping.clone());
                    connections.spawn(connection(front, socket, tls, Some(permit), stopping));
                }
                Some(_) = connections.join_next() => {}
                Some(_) = refused.join_next() => {}
                () = &mut stop => break,
            }
        }
        drop((acceptor, stopping));
        let drained = async { while connections.join_next().await.is_some() {} };
        if timeout(grace, drained).await.is_err() {
            tracing::warn!(connections = connections.len(), "S3 requests cut at shutdown");
        }
    }
}

/// What the files of a configuration contain.
struct Opened {
    keys: AccessKeys,
    identities: Vec<IdentitySource>,
    origin_tls: Option<rustls::ClientConfig>,
    server_tls: Option<Arc<rustls::ServerConfig>>,
}

impl Opened {
    fn read(config: &GatewayConfig) -> anyhow::Result<Self> {
        let keys =
            if config.trusted { AccessKeys::trusted() } else { AccessKeys::read(&config.tenants)? };
        let identities = config
            .identities
            .iter()
            .map(|identity| IdentitySource::open(identity, config))
            .collect::<anyhow::Result<_>>()?;
        let origin_tls = (config.endpoint.scheme_str() == Some("https"))
            .then(|| origin_tls::client_config(config.origin_ca.as_deref()))
            .transpose()?;
        let server_tls = config
            .tls
            .as_ref()
            .map(|files| forebay_auth::server_config(&files.certificate, &files.key, None));
        Ok(Self { keys, identities, origin_tls, server_tls: server_tls.transpose()? })
    }
}

async fn connection(
    front: Arc<Front>,
    socket: TcpStream,
    tls: Option<TlsAcceptor>,
    permit: Option<ConnectionPermit>,
    stopping: watch::Receiver<()>,
) {
    let is_over_limit = permit.is_none();
    match tls {
        None => serve(front, socket, is_over_limit, stopping).await,
        Some(tls) => match timeout(HANDSHAKE_TIMEOUT, tls.accept(socket)).await {
            Ok(Ok(socket)) => serve(front, socket, is_over_limit, stopping).await,
            Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => tracing::debug!("TLS handshake timed out"),
        },
    }
    drop(permit);
}

async fn serve(
    front: Arc<Front>,
    socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    is_over_limit: bool,
    mut stopping: watch::Receiver<()>,
) {
    let socket = StallGuard::new(socket, front.progress_timeout);
    let service = service_fn(move |request| {
        let front = Arc::clone(&front);
        async move { Ok::<_, Infallible>(front.answer(request, is_over_limit).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(BUFFER_SIZE_MAX)
        .serve_connection(TokioIo::new(socket), service);
    let mut connection = pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        _ = stopping.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "S3 connection ended early");
    }
}
