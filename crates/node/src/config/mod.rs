//! The node's configuration: one TOML file, a default for every key, unknown keys refused.
//!
//! The table below is the only list of keys. The struct, the defaults, the parser, the template
//! that `forebay serve --print-config` prints, the reference page and the comparison on reload are
//! generated from it ([`keys`]).

pub(crate) mod cluster;
pub(crate) mod exposure;
mod keys;
pub(crate) mod nodes;
pub(crate) mod reload;
pub(crate) mod tenants;
mod value;

use std::{
    env,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use forebay_auth::read_named;
use forebay_core::{
    ByteSize, NodeName,
    cluster::ring::{Member, RingMembership},
    node::claims::LEASES,
};
use forebay_flash::io::Backend;
use rustix::process::geteuid;

use crate::{config::tenants::TenantConfig, ops::memory_limit, store::stream_store::check_budgets};
pub(crate) use keys::unknown_key;
use keys::{Key, config_keys};
use value::ConfigValue;
pub use value::GatewayTable;

/// Default capacity, unless less than twice as much is free on the disk.
const CAPACITY_DEFAULT: ByteSize = ByteSize::gb(20);
/// Most concurrent connections that can be configured.
const CONNECTIONS_MAX: usize = 1 << 16;
/// A smaller `connection_memory` could not hold the longest payloads of several clients.
const CONNECTION_MEMORY_MIN: ByteSize = ByteSize::mib(64);
/// A smaller cache could not hold the regions that are being filled.
const CAPACITY_MIN: ByteSize = ByteSize::mib(8);
/// Log levels.
const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];
/// Longest `shutdown_grace`.
const SHUTDOWN_GRACE_MAX: Duration = Duration::from_mins(10);

config_keys! {
    /// Unix socket for jobs, in a directory that no other user may write to
    socket: PathBuf = default_socket(), restart, "\"/run/user/1000/forebay/node.sock\"";
    /// TCP address for jobs; beyond loopback it needs TLS and tenants
    listen: Option<SocketAddr> = None, restart, "\"127.0.0.1:7070\"";
    /// certificate of the node for `listen`, with its chain (PEM)
    tls_certificate: Option<PathBuf> = None, restart, "\"node.pem\"";
    /// private key of `tls_certificate` (PEM)
    tls_key: Option<PathBuf> = None, restart, "\"node.key\"";
    /// CA that signs the certificates of tenants (PEM)
    tls_client_ca: Option<PathBuf> = None, restart, "\"ca.pem\"";
    /// tenants and the namespaces that each may use; without any, only the node's own user connects
    tenants: Vec<TenantConfig> = Vec::new(), restart,
        "[{ name = \"team\", tokens = [\"team.token\"], uids = [1000], \
         namespaces = [\"public\"], streams = \"50GB\" }]";
    /// directory of the node; one node per directory
    directory: PathBuf = default_directory(), restart, "\"/var/cache/forebay\"";
    /// files, which are created, or block devices, which must be blank or this node's; by default
    /// `cache.flash` in `directory`
    devices: Vec<PathBuf> = Vec::new(), restart, "[\"/dev/nvme1n1\"]";
    /// flash reserved on all devices together, at least 8MiB; auto is what was reserved before,
    /// else 20GB but at most half of the free space, or the whole of block devices
    capacity: Option<ByteSize> = None, restart, "\"20GB\"";
    /// region size of new devices, the unit of eviction: a power of two from 1MiB to 64MiB; auto is
    /// capacity / 256, at most 64MiB
    region_size: Option<ByteSize> = None, restart, "\"64MiB\"";
    /// flash for the streams of the node's owner, or of all clients of a node without tenants, at
    /// least 64MiB; 0B disables them; a tenant has a budget of its own in `tenants`
    streams: ByteSize = ByteSize::ZERO, restart, "\"50GB\"";
    /// memory for blobs of up to 1MiB that were just written or are read again; auto is 1/16 of the
    /// machine's memory or cgroup limit, 256MiB to 16GiB, at most 1/8; 0B disables it
    memory_cache: Option<ByteSize> = None, live, "\"2GiB\"";
    /// memory that the node shares with all clients of its machine together; auto is 1/8 of the
    /// machine's memory or cgroup limit, at most 512MiB; 0B disables it
    shared_memory: Option<ByteSize> = None, restart, "\"512MiB\"";
    /// memory for requests and replies that wait on all connections together, at least 64MiB; auto
    /// is 1/8 of the machine's memory or cgroup limit, 64MiB to 1GiB
    connection_memory: Option<ByteSize> = None, restart, "\"256MiB\"";
    /// I/O backend of devices: `auto`, `io_uring` or `threads`
    io: Backend = Backend::Auto, restart, "\"auto\"";
    /// time after which a claim expires that its holder does not renew: 100ms to 10min
    claim_lease: Duration = Duration::from_secs(10), restart, "\"10s\"";
    /// concurrent connections, 1 to 65536; a process of a job uses two; a tenant may have half, and
    /// some are reserved for the node's owner and for other nodes
    max_connections: usize = 512, live, "512";
    /// loopback address of `/metrics`, `/livez` and `/readyz`
    metrics: Option<SocketAddr> = None, restart, "\"127.0.0.1:9464\"";
    /// key files of private namespaces, for a node without tenants; `public` is always served
    namespaces: Vec<PathBuf> = Vec::new(), live, "[\"team.key\"]";
    /// stop after this time without connections
    idle_exit: Option<Duration> = None, live, "\"10min\"";
    /// name of this node in `nodes`
    name: Option<NodeName> = None, restart, "\"a\"";
    /// nodes of the cluster, this one included; the same list on every node
    nodes: Vec<Member> = Vec::new(), restart,
        "[{ name = \"a\", endpoint = \"/run/user/1000/forebay/node.sock\", weight = 1, \
         zone = \"east\" }]";
    /// give each zone a ring of its own
    isolate_zones: bool = false, restart, "false";
    /// file with the token by which nodes authenticate each other: at least 32 characters,
    /// readable by its owner only, the same on every node
    cluster_token: Option<PathBuf> = None, restart, "\"cluster.token\"";
    /// CA that signs the certificates of the other nodes, for tls:// endpoints (PEM)
    cluster_ca: Option<PathBuf> = None, restart, "\"authority.pem\"";
    /// S3 endpoint of Tier, a table of its own: see below
    gateway: Option<GatewayTable> = None, restart,
        "{ listen = \"127.0.0.1:9000\", endpoint = \"https://s3.eu-west-1.amazonaws.com\" }";
    /// time for requests in progress to finish after a stop signal: at most 10min
    shutdown_grace: Duration = Duration::from_secs(5), live, "\"5s\"";
    /// log level: error, warn, info, debug or trace; `FOREBAY_LOG` overrides it
    log: String = "info".to_owned(), live, "\"info\"";
}

impl Config {
    /// Reads a file and checks each value alone. Command-line options may still change it:
    /// [`Config::check`] checks the values together.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        ensure!(
            path.exists(),
            "there is no configuration file `{shown}`; `forebay serve --print-config` prints one"
        );
        let text =
            read_text(path).with_context(|| format!("cannot read the configuration `{shown}`"))?;
        Self::parse(&text).with_context(|| format!("in the configuration `{shown}`"))
    }

    /// Parses the text of a file, like [`Config::read`].
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            anyhow::anyhow!("line {line}: {}", error.message())
        })?;
        Self::from_table(&table)
    }

    /// Refuses values that contradict each other or are not safe. Reads none of the files named.
    pub fn check(&self) -> anyhow::Result<()> {
        self.membership()?;
        self.check_exposure()?;
        if let Some(metrics) = self.metrics {
            ensure!(
                metrics.ip().is_loopback(),
                "`metrics` has no authentication, so it must not listen on {metrics}; use \
                 127.0.0.1:{}",
                metrics.port()
            );
        }
        if let Some(capacity) = self.capacity {
            ensure!(
                capacity >= CAPACITY_MIN,
                "`capacity` is {capacity}; give at least {CAPACITY_MIN}"
            );
        }
        if let Some(size) = self.region_size {
            forebay_flash::check_region_size(size).context("`region_size`")?;
        }
        forebay_flash::check_distinct(&self.devices).context("`devices`")?;
        check_budgets(self)?;
        if let Some(memory) = self.connection_memory {
            ensure!(
                memory >= CONNECTION_MEMORY_MIN,
                "`connection_memory` is {memory}; give at least {CONNECTION_MEMORY_MIN}"
            );
        }
        ensure!(
            (1..=CONNECTIONS_MAX).contains(&self.max_connections),
            "`max_connections` should be between 1 and {CONNECTIONS_MAX}"
        );
        ensure!(
            self.shutdown_grace <= SHUTDOWN_GRACE_MAX,
            "`shutdown_grace` should be at most 10min"
        );
        ensure!(LEVELS.contains(&&*self.log), "`log` should be one of {}", LEVELS.join(", "));
        ensure!(
            LEASES.contains(&self.claim_lease),
            "`claim_lease` should be between 100ms and 10min"
        );
        Ok(())
    }

    /// The tenants whose clients connect to the node, in the order of their ids.
    pub(crate) fn node_tenants(&self) -> impl Iterator<Item = &TenantConfig> {
        self.tenants.iter().filter(|tenant| !tenant.is_s3_only())
    }

    /// This node's place in the cluster, or `None` for a single node.
    pub fn membership(&self) -> anyhow::Result<Option<RingMembership>> {
        nodes::membership(self.name.as_ref(), &self.nodes, self.isolate_zones)
    }

    /// The capacity of devices that are created now: as configured, or 20 GB but at most half of
    /// the free space.
    pub fn capacity_of(&self, free: ByteSize) -> ByteSize {
        let default = CAPACITY_DEFAULT.min(ByteSize(free.0 / 2));
        self.capacity.unwrap_or(default).max(CAPACITY_MIN)
    }

    /// The size of the memory cache: as configured, or as planned.
    pub fn memory_cache_size(&self) -> ByteSize {
        self.memory_cache.unwrap_or_else(|| memory_limit::plan().memory_cache)
    }

    /// The memory shared with clients: as configured, or as planned.
    pub fn shared_memory_size(&self) -> ByteSize {
        self.shared_memory.unwrap_or_else(|| memory_limit::plan().shared_memory)
    }

    /// The memory of connections: as configured, or as planned.
    pub fn connection_memory_size(&self) -> ByteSize {
        self.connection_memory.unwrap_or_else(|| memory_limit::plan().connection_memory)
    }

    /// The memory for the blob tables of open datasets.
    #[expect(clippy::unused_self, reason = "a setting as the others, not configurable")]
    pub(crate) fn table_memory(&self) -> ByteSize {
        memory_limit::plan().tables
    }
}

/// The socket of this user's node: `$FOREBAY_SOCKET`, or a path in a directory that only this user
/// can enter.
pub fn default_socket() -> PathBuf {
    if let Some(socket) = env::var_os("FOREBAY_SOCKET").filter(|socket| !socket.is_empty()) {
        return socket.into();
    }
    match env::var_os("XDG_RUNTIME_DIR").filter(|directory| Path::new(directory).is_dir()) {
        Some(directory) => PathBuf::from(directory).join("forebay/node.sock"),
        None => temporary_directory().join("node.sock"),
    }
}

/// Longest configuration that is read: 1,024 nodes take a tenth of it.
const FILE_SIZE_MAX: u64 = 1 << 20;

/// The text of a configuration file. A pipe is refused: it may never end.
fn read_text(path: &Path) -> anyhow::Result<String> {
    String::from_utf8(read_named(path, FILE_SIZE_MAX)?).context("it is not UTF-8 text")
}

fn default_directory() -> PathBuf {
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = env::var_os("XDG_CACHE_HOME").filter(|directory| !directory.is_empty());
    let cache = cache.map(PathBuf::from).or_else(home);
    cache.unwrap_or_else(temporary_directory).join("forebay")
}

/// This user's directory below `/tmp`, for a user without a home or a runtime directory. Another
/// user may have made it first, so it is checked before it is used.
pub(crate) fn temporary_directory() -> PathBuf {
    format!("/tmp/forebay-{}", geteuid().as_raw()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        let checked = Config::parse(text).and_then(|config| config.check());
        format!("{:#}", checked.unwrap_err())
    }

    #[test]
    fn a_file_overrides_the_defaults_it_names() {
        let config = Config::parse("capacity = \"5GB\"\nclaim_lease = \"2s\"").unwrap();
        assert_eq!(config.capacity, Some(ByteSize::gb(5)));
        assert_eq!(config.claim_lease, Duration::from_secs(2));
        assert_eq!(config.socket, Config::default().socket);
        assert!(Config::parse("").is_ok() && Config::parse(&Config::template()).is_ok());
    }

    #[test]
    fn the_template_uncommented_equals_the_defaults() {
        let template = Config::template();
        let uncommented: String = template
            .lines()
            .filter_map(|line| line.strip_prefix("# "))
            .filter(|line| {
                Config::KEYS.iter().any(|key| line.starts_with(&format!("{} = ", key.name)))
            })
            .map(|line| format!("{line}\n"))
            .collect();
        assert_eq!(uncommented.lines().count(), Config::KEYS.len(), "{uncommented}");
        assert_eq!(Config::parse(&uncommented).unwrap(), Config::default());
        assert_eq!(Config::parse(&template).unwrap(), Config::default());
    }

    #[test]
    fn a_reload_applies_live_keys_and_names_the_others() {
        let old = Config::default();
        let text = "memory_cache = \"1MiB\"\nclaim_lease = \"2s\"\nlog = \"debug\"";
        let (applied, restart) = old.reloaded_with(&Config::parse(text).unwrap());
        assert_eq!((applied.memory_cache, &*applied.log), (Some(ByteSize::mib(1)), "debug"));
        assert_eq!((applied.claim_lease, restart), (old.claim_lease, vec!["claim_lease"]));
        assert_eq!(old.reloaded_with(&old), (old.clone(), vec![]));
        for Key { name, example, is_live, .. } in Config::KEYS {
            let new = Config::parse(&format!("{name} = {example}")).unwrap();
            let needs_restart = new != old && !is_live;
            let expected = if needs_restart { vec![*name] } else { vec![] };
            assert_eq!(old.reloaded_with(&new).1, expected, "{name}");
        }
    }

    #[test]
    fn every_example_is_accepted() {
        let examples = Config::KEYS.iter().filter(|key| key.name != "namespaces");
        let text: String =
            examples.map(|Key { name, example, .. }| format!("{name} = {example}\n")).collect();
        let config = Config::parse(&text).unwrap();
        assert_eq!(config.max_connections, 512);
        assert!(Config::parse("namespaces = [\"team.key\"]").unwrap().check().is_ok());
    }

    #[test]
    fn mistakes_are_named() {
        assert!(error("capcity = \"5GB\"").contains("did you mean `capacity`"));
        assert!(error("colour = 1").contains("the keys are socket, listen"));
        assert!(error("capacity = \"5 apples\"").contains("`capacity`"));
        assert!(error("capacity = 5").contains("text in quotes"));
        assert!(error("claim_lease = \"2s\"\n\ncapacity = ").contains("line 3"));
        assert!(error("metrics = \"0.0.0.0:80\"").contains("use 127.0.0.1:80"));
        assert!(error("claim_lease = \"1h\"").contains("ms, s or min"));
        assert!(error("streams = \"1MB\"").contains("`streams` is 1.00 MB; give at least 64 MiB"));
        assert!(error("connection_memory = \"1MiB\"").contains("`connection_memory` is"));
        assert!(error("max_connections = 0").contains("between 1 and 65536"));
        assert!(
            error("max_connections = \"many\"")
                .contains("should be a number, like max_connections = 512")
        );
        assert!(error("claim_lease = 10").contains("like claim_lease = \"10s\""));
    }

    /// Files are edited by hand: a damaged one is refused with a message, or can be used.
    #[test]
    fn mutated_files_never_panic() {
        // `namespaces` of the node and `tenants` exclude each other.
        let keys = Config::KEYS.iter().filter(|key| key.name != "namespaces");
        let examples: String =
            keys.map(|Key { name, example, .. }| format!("{name} = {example}\n")).collect();
        let mut random = fastrand::Rng::with_seed(7);
        let mut used = 0;
        for _ in 0..3000 {
            let mut text: Vec<char> = examples.chars().collect();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..text.len());
                match random.u8(..4) {
                    0 => text[at] = random.char(..),
                    1 => text.insert(
                        at,
                        random.choice(['"', '[', ']', '=', '\n', '#', 'é', '0']).unwrap(),
                    ),
                    2 => drop(text.remove(at)),
                    _ => text.truncate(at.max(1)),
                }
            }
            match Config::parse(&text.iter().collect::<String>()) {
                Ok(config) => used += usize::from(config.check().is_ok()),
                Err(error) => assert!(!format!("{error:#}").is_empty()),
            }
        }
        assert!((30..2900).contains(&used), "some are usable, some are refused: {used}");
    }

    #[test]
    fn the_default_capacity_is_at_most_half_of_the_free_space() {
        let config = Config::default();
        let capacity = |free| config.capacity_of(ByteSize::gb(free));
        assert_eq!((capacity(100), capacity(10)), (ByteSize::gb(20), ByteSize::gb(5)));
    }
}
