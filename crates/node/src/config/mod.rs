//! A node's configuration: one TOML file, every key with a default, unknown keys refused.

use std::{
    env,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use forebay_core::{
    ByteSize, NodeName,
    claims::LEASES,
    ring::{Member, Membership},
    units::parse_duration,
};
use forebay_flash::io::Backend;
use rustix::process::geteuid;

use crate::{blobs::backend, machine, nodes, tenant_config::TenantConfig};

/// What a node keeps at most, unless it is told otherwise or the disk has less than twice as much free.
const CAPACITY_DEFAULT: ByteSize = ByteSize::gb(20);
/// Each may take some memory: up to 32 MiB of payload on its way out, and 16 MiB on its way in.
const CONNECTIONS_MAX: usize = 1 << 16;
/// What a node takes of the memory there is for blobs, unless it is told otherwise, and its limits.
const MEMORY_SHARE: u64 = 16;
const MEMORY_SHARE_MAX: u64 = 4;
const MEMORY_MIN: ByteSize = ByteSize::mib(256);
const MEMORY_MAX: ByteSize = ByteSize::mib(16 << 10);
/// What a node needs to be of any use.
const CAPACITY_MIN: ByteSize = ByteSize::mib(8);

/// How a node runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where jobs connect.
    pub socket: PathBuf,
    /// Where others than those on the socket connect; nowhere if it is not said.
    pub listen: Option<SocketAddr>,
    /// The certificate that it shows there; without one, it is in the clear.
    pub tls_certificate: Option<PathBuf>,
    /// The key of that.
    pub tls_key: Option<PathBuf>,
    /// The authority that signs the certificates of tenants.
    pub tls_clients: Option<PathBuf>,
    /// Who may connect, and what is theirs; without any, the node is its user's own.
    pub tenants: Vec<TenantConfig>,
    /// Where the node keeps what it needs, and its device, unless others are named.
    pub directory: PathBuf,
    /// Files or block devices for the cache.
    pub devices: Vec<PathBuf>,
    /// How large the regions of new devices are; decided by the capacity if it is not said.
    pub region_size: Option<ByteSize>,
    /// How devices are read and written.
    pub io: Backend,
    /// How much may lie there, on all devices together; decided by the disk if it is not said.
    pub capacity: Option<ByteSize>,
    /// How much memory is used for blobs that are read again and again.
    pub memory: ByteSize,
    /// How much memory is lent to clients of this machine, to all of them together.
    pub segments: ByteSize,
    /// How long a claim lives without being renewed.
    pub lease: Duration,
    /// How many may be connected at once.
    pub connections: usize,
    /// Where `/metrics` is served; nowhere if it is not said.
    pub metrics: Option<SocketAddr>,
    /// Key files of the private namespaces that this node serves.
    pub namespaces: Vec<PathBuf>,
    /// Stop when nobody has been connected for so long.
    pub idle_exit: Option<Duration>,
    /// Which of the nodes this one is.
    pub name: Option<NodeName>,
    /// All nodes that share the work, this one among them; none, if it is alone.
    pub nodes: Vec<Member>,
    /// Each zone has a ring of its own.
    pub zones_apart: bool,
    /// The file with the token by which nodes of one ring know each other.
    pub cluster_token: Option<PathBuf>,
    /// The certificate of the authority that signs those of the other nodes, if they are reached by TLS.
    pub cluster_authority: Option<PathBuf>,
    /// How long what is under way may still take once a stop was asked for.
    pub grace: Duration,
    /// What is logged, unless the environment says otherwise.
    pub log: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            socket: default_socket(),
            listen: None,
            tls_certificate: None,
            tls_key: None,
            tls_clients: None,
            tenants: Vec::new(),
            directory: default_directory(),
            devices: Vec::new(),
            region_size: None,
            io: Backend::Auto,
            capacity: None,
            memory: default_memory(),
            segments: ByteSize::mib(512),
            lease: Duration::from_secs(10),
            connections: 512,
            metrics: None,
            namespaces: Vec::new(),
            idle_exit: None,
            name: None,
            nodes: Vec::new(),
            zones_apart: false,
            cluster_token: None,
            cluster_authority: None,
            grace: Duration::from_secs(5),
            log: "info".to_owned(),
        }
    }
}

/// The keys, with examples: what a template shows, and what is suggested for a misspelt one.
const KEYS: [(&str, &str, &str); 25] = [
    ("socket", "\"/run/user/1000/forebay/node.sock\"", "where jobs connect"),
    ("listen", "\"127.0.0.1:7070\"", "where jobs connect over TCP; nowhere by default"),
    ("tls_certificate", "\"node.pem\"", "the certificate that is shown there, with its chain"),
    ("tls_key", "\"node.key\"", "its key"),
    ("tls_clients", "\"ca.pem\"", "the authority that signs certificates of tenants"),
    (
        "tenants",
        "[{ name = \"team\", tokens = [\"team.token\"], uids = [1000], namespaces = [\"public\"] }]",
        "who may connect, and what is theirs; without any, the node is its user's own",
    ),
    ("directory", "\"/var/cache/forebay\"", "where blobs lie"),
    ("devices", "[\"/dev/nvme1n1\"]", "files or block devices; by default a file in the directory"),
    ("capacity", "\"20GB\"", "how much is reserved; by default 20GB, or half of what is free"),
    (
        "region_size",
        "\"64MiB\"",
        "the unit of eviction, for new devices; a power of two from 1MiB to 64MiB",
    ),
    (
        "memory",
        "\"2GiB\"",
        "memory for blobs that are read again and again; by default a sixteenth of the machine's; \"0B\" for none",
    ),
    (
        "segments",
        "\"512MiB\"",
        "memory shared with clients of this machine, for all of them together; \"0B\" for none",
    ),
    ("io", "\"auto\"", "how devices are used: auto, io_uring or threads"),
    ("lease", "\"10s\"", "how long a claim lives without being renewed"),
    ("connections", "512", "how many may be connected at once: two for each process of a job"),
    ("metrics", "\"127.0.0.1:9464\"", "where /metrics is served; nowhere by default"),
    ("namespaces", "[\"team.key\"]", "key files of the private namespaces to be served"),
    ("idle_exit", "\"10min\"", "stop when nobody has been connected for so long"),
    ("name", "\"a\"", "which of the nodes this one is"),
    (
        "nodes",
        "[{ name = \"a\", endpoint = \"/run/user/1000/forebay/node.sock\", weight = 1, zone = \"east\" }]",
        "all nodes that share the work, the same list on each of them; without a list it is alone",
    ),
    ("zones_apart", "false", "whether each zone has a ring of its own"),
    (
        "cluster_token",
        "\"cluster.token\"",
        "the file with the token by which the nodes know each other, the same on each of them",
    ),
    (
        "cluster_authority",
        "\"authority.pem\"",
        "the certificate of the authority that signs those of the other nodes, for tls:// endpoints",
    ),
    ("grace", "\"5s\"", "how long what is under way may still take once a stop was asked for"),
    (
        "log",
        "\"info\"",
        "what is logged: error, warn, info, debug or trace; FOREBAY_LOG overrides it",
    ),
];

/// Keys that a running node takes up when it reads its configuration again; the others need a restart.
const LIVE: [&str; 6] = ["memory", "connections", "namespaces", "idle_exit", "grace", "log"];
/// What to write for "decided by forebay itself".
const AUTO: &str = "auto";
/// What to write for "never", or "nowhere".
const NONE: &str = "none";
/// What `log` can be.
const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];
/// How much time a stop may take.
const GRACE_MAX: Duration = Duration::from_mins(10);

impl Config {
    /// Reads a file. What is said elsewhere counts as well, so that nothing is checked yet but each value for
    /// itself.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the configuration `{}`", path.display()))?;
        Self::parse(&text).with_context(|| format!("in the configuration `{}`", path.display()))
    }

    /// Understands the text of a file, as [`Config::read`] does.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            anyhow::anyhow!("line {line}: {}", error.message())
        })?;
        Self::from_table(&table)
    }

    pub(crate) fn from_table(table: &toml::Table) -> anyhow::Result<Self> {
        let mut config = Self::default();
        for (key, value) in table {
            config.set(key, value).with_context(|| format!("`{key}`"))?;
        }
        Ok(config)
    }

    fn set(&mut self, key: &str, value: &toml::Value) -> anyhow::Result<()> {
        let text =
            || value.as_str().with_context(|| format!("should be a text in quotes{}", like(key)));
        match key {
            "socket" => self.socket = text()?.into(),
            "listen" => self.listen = unless(NONE, text()?, address)?,
            "tls_certificate" => self.tls_certificate = unless(NONE, text()?, path)?,
            "tls_key" => self.tls_key = unless(NONE, text()?, path)?,
            "tls_clients" => self.tls_clients = unless(NONE, text()?, path)?,
            "tenants" => self.tenants = TenantConfig::all(value)?,
            "directory" => self.directory = text()?.into(),
            "devices" => self.devices = paths(value)?,
            "region_size" => self.region_size = unless(AUTO, text()?, |text| Ok(text.parse()?))?,
            "io" => self.io = backend(text()?)?,
            "capacity" => self.capacity = unless(AUTO, text()?, |text| Ok(text.parse()?))?,
            "memory" => {
                let said = unless(AUTO, text()?, |text| Ok(text.parse()?))?;
                self.memory = said.unwrap_or_else(default_memory);
            }
            "segments" => self.segments = text()?.parse()?,
            "lease" => self.lease = time(text()?)?,
            "connections" => {
                let number = value.as_integer().and_then(|number| usize::try_from(number).ok());
                self.connections =
                    number.with_context(|| format!("should be a number{}", like(key)))?;
            }
            "metrics" => self.metrics = unless(NONE, text()?, address)?,
            "idle_exit" => self.idle_exit = unless(NONE, text()?, time)?,
            "grace" => self.grace = time(text()?)?,
            "log" => text()?.clone_into(&mut self.log),
            "namespaces" => self.namespaces = paths(value)?,
            "name" => self.name = unless(NONE, text()?, |text| Ok(text.parse()?))?,
            "nodes" => self.nodes = nodes::members(value)?,
            "zones_apart" => {
                self.zones_apart = value.as_bool().context("should be true or false")?;
            }
            "cluster_token" => self.cluster_token = unless(NONE, text()?, path)?,
            "cluster_authority" => self.cluster_authority = unless(NONE, text()?, path)?,
            unknown => return Err(unknown_key(unknown, &KEYS.map(|(key, ..)| key))),
        }
        Ok(())
    }

    /// Refuses what makes no sense or is not safe. Reads none of the files that it names.
    pub fn check(&self) -> anyhow::Result<()> {
        self.membership()?;
        self.check_reach()?;
        if let Some(metrics) = self.metrics {
            ensure!(
                metrics.ip().is_loopback(),
                "`metrics` has no authentication, so it must not listen on {metrics}; use 127.0.0.1:{}",
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
        ensure!(
            (1..=CONNECTIONS_MAX).contains(&self.connections),
            "`connections` should be between 1 and {CONNECTIONS_MAX}"
        );
        ensure!(self.grace <= GRACE_MAX, "`grace` should be at most 10min");
        ensure!(LEVELS.contains(&&*self.log), "`log` should be one of {}", LEVELS.join(", "));
        ensure!(LEASES.contains(&self.lease), "`lease` should be between 100ms and 10min");
        Ok(())
    }

    /// Who this node is, and among whom; nothing, if it is alone.
    pub fn membership(&self) -> anyhow::Result<Option<Membership>> {
        nodes::membership(self.name.as_ref(), &self.nodes, self.zones_apart)
    }

    /// How much may be kept on devices that are made now: what was said, or else 20 GB, but not more than
    /// half of what is free.
    pub fn capacity_of(&self, free: ByteSize) -> ByteSize {
        let unsaid = CAPACITY_DEFAULT.min(ByteSize(free.0 / 2));
        self.capacity.unwrap_or(unsaid).max(CAPACITY_MIN)
    }

    /// A file that says what the defaults say, all of it commented out.
    pub fn template() -> String {
        let lines = KEYS.iter().map(|(key, example, meaning)| {
            let default = Self::default_of(key).unwrap_or_else(|| (*example).to_owned());
            let example =
                if default == *example { String::new() } else { format!("; like {example}") };
            let live = if LIVE.contains(key) { "; SIGHUP takes it up" } else { "" };
            format!("# {meaning}{example}{live}\n# {key} = {default}\n")
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// What a key is if nobody says it, where that is not the example.
    fn default_of(key: &str) -> Option<String> {
        let quoted = |text: &dyn std::fmt::Display| Some(format!("\"{text}\""));
        match key {
            "socket" => quoted(&default_socket().display()),
            "directory" => quoted(&default_directory().display()),
            "devices" | "namespaces" | "tenants" | "nodes" => Some("[]".to_owned()),
            "capacity" | "region_size" | "memory" => quoted(&AUTO),
            "listen" | "tls_certificate" | "tls_key" | "tls_clients" | "metrics" | "idle_exit"
            | "name" | "cluster_token" | "cluster_authority" => quoted(&NONE),
            _ => None,
        }
    }

    /// This configuration with what a running node can take up of another, and the keys that only a restart
    /// would change.
    pub fn taking_up(&self, new: &Self) -> (Self, Vec<&'static str>) {
        let Self { memory, connections, namespaces, idle_exit, grace, log, .. } = new.clone();
        let taken = Self { memory, connections, namespaces, idle_exit, grace, log, ..self.clone() };
        let differs = |key: &str| match key {
            "socket" => taken.socket != new.socket,
            "directory" => taken.directory != new.directory,
            "devices" => taken.devices != new.devices,
            "capacity" => taken.capacity != new.capacity,
            "region_size" => taken.region_size != new.region_size,
            "io" => taken.io != new.io,
            "lease" => taken.lease != new.lease,
            "metrics" => taken.metrics != new.metrics,
            "listen" => taken.listen != new.listen,
            "tls_certificate" => taken.tls_certificate != new.tls_certificate,
            "tls_key" => taken.tls_key != new.tls_key,
            "tls_clients" => taken.tls_clients != new.tls_clients,
            "tenants" => taken.tenants != new.tenants,
            "segments" => taken.segments != new.segments,
            "name" => taken.name != new.name,
            "nodes" => taken.nodes != new.nodes,
            "zones_apart" => taken.zones_apart != new.zones_apart,
            "cluster_token" => taken.cluster_token != new.cluster_token,
            "cluster_authority" => taken.cluster_authority != new.cluster_authority,
            _ => false,
        };
        let rest = KEYS.iter().map(|(key, ..)| *key).filter(|key| differs(key)).collect();
        (taken, rest)
    }
}

/// An example for a key, where there is one.
fn like(key: &str) -> String {
    let example = KEYS.iter().find(|(known, ..)| *known == key);
    example.map_or(String::new(), |(key, example, _)| format!(", like {key} = {example}"))
}

/// Nothing, if a text is the word for that; else what it says.
fn unless<T>(
    word: &str,
    text: &str,
    parse: impl FnOnce(&str) -> anyhow::Result<T>,
) -> anyhow::Result<Option<T>> {
    if text == word { Ok(None) } else { parse(text).map(Some) }
}

/// What is said of a key that there is not.
pub(crate) fn unknown_key(unknown: &str, keys: &[&str]) -> anyhow::Error {
    let distance = |key: &str| strsim::damerau_levenshtein(key, unknown);
    let near = keys.iter().map(|key| (distance(key), *key)).min();
    let (distance, nearest) = near.expect("there are keys");
    if distance <= 3 {
        return anyhow::anyhow!("there is no such key; did you mean `{nearest}`?");
    }
    anyhow::anyhow!("there is no such key; there are {}", keys.join(", "))
}

pub(crate) fn paths(value: &toml::Value) -> anyhow::Result<Vec<PathBuf>> {
    let list = value.as_array().context("should be a list of file names")?;
    let names: Option<_> = list.iter().map(|value| value.as_str().map(PathBuf::from)).collect();
    names.context("should be a list of file names")
}

#[expect(clippy::unnecessary_wraps, reason = "one of several ways to understand a text")]
fn path(text: &str) -> anyhow::Result<PathBuf> {
    Ok(text.into())
}

fn address(text: &str) -> anyhow::Result<SocketAddr> {
    text.parse().context("should be an address and a port, like 127.0.0.1:9464")
}

fn time(text: &str) -> anyhow::Result<Duration> {
    parse_duration(text).map_err(anyhow::Error::msg)
}

/// The socket of this user's node: `$FOREBAY_SOCKET`, or in a directory that only this user can enter.
pub fn default_socket() -> PathBuf {
    if let Some(socket) = env::var_os("FOREBAY_SOCKET").filter(|socket| !socket.is_empty()) {
        return socket.into();
    }
    match env::var_os("XDG_RUNTIME_DIR").filter(|directory| Path::new(directory).is_dir()) {
        Some(directory) => PathBuf::from(directory).join("forebay/node.sock"),
        None => format!("/tmp/forebay-{}/node.sock", geteuid().as_raw()).into(),
    }
}

fn default_memory() -> ByteSize {
    machine::memory().map_or(MEMORY_MIN, share_of)
}

/// A sixteenth of what there is: enough that small datasets lie in memory, and little beside what jobs need. Where
/// there is little, it is more of that, but never so much that nothing else fits.
fn share_of(there: ByteSize) -> ByteSize {
    let share = ByteSize(there.0 / MEMORY_SHARE).clamp(MEMORY_MIN, MEMORY_MAX);
    share.min(ByteSize(there.0 / MEMORY_SHARE_MAX))
}

fn default_directory() -> PathBuf {
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = env::var_os("XDG_CACHE_HOME").filter(|directory| !directory.is_empty());
    let cache = cache.map(PathBuf::from).or_else(home);
    cache.unwrap_or_else(|| format!("/tmp/forebay-{}", geteuid().as_raw()).into()).join("forebay")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn complaint(text: &str) -> String {
        let checked = Config::parse(text).and_then(|config| config.check());
        format!("{:#}", checked.unwrap_err())
    }

    #[test]
    fn a_node_leaves_most_of_the_memory_to_others() {
        let cases = [
            (64 << 10, 4 << 10),
            (16 << 10, 1 << 10),
            (2 << 10, 256),
            (320, 80),
            (1 << 20, 16 << 10),
        ];
        for (there, share) in cases {
            assert_eq!(share_of(ByteSize::mib(there)), ByteSize::mib(share));
        }
    }

    #[test]
    fn a_file_says_only_what_differs() {
        let config = Config::parse("capacity = \"5GB\"\nlease = \"2s\"").unwrap();
        assert_eq!(config.capacity, Some(ByteSize::gb(5)));
        assert_eq!(config.lease, Duration::from_secs(2));
        assert_eq!(config.socket, Config::default().socket);
        assert!(Config::parse("").is_ok() && Config::parse(&Config::template()).is_ok());
    }

    /// What is written there is what happens without a word.
    #[test]
    fn the_template_says_the_defaults() {
        let template = Config::template();
        let uncommented: String = template
            .lines()
            .filter_map(|line| line.strip_prefix("# "))
            .filter(|line| KEYS.iter().any(|(key, ..)| line.starts_with(&format!("{key} = "))))
            .map(|line| format!("{line}\n"))
            .collect();
        assert_eq!(uncommented.lines().count(), KEYS.len(), "{uncommented}");
        assert_eq!(Config::parse(&uncommented).unwrap(), Config::default());
        assert_eq!(Config::parse(&template).unwrap(), Config::default());
    }

    /// The page for operators has a row for every key, and says what needs a restart.
    #[test]
    fn the_page_names_every_key() {
        let page = include_str!("../../../docs/node.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
        let of_table = rows.filter_map(|row| row.split_once("` | "));
        let written: BTreeSet<(&str, bool)> =
            of_table.map(|(key, row)| (key, row.contains("| live |"))).collect();
        assert_eq!(written, KEYS.iter().map(|(key, ..)| (*key, LIVE.contains(key))).collect());
    }

    #[test]
    fn a_running_node_takes_up_what_it_can() {
        let old = Config::default();
        let new = Config::parse("memory = \"1MiB\"\nlease = \"2s\"\nlog = \"debug\"").unwrap();
        let (taken, rest) = old.taking_up(&new);
        assert_eq!((taken.memory, &*taken.log), (ByteSize::mib(1), "debug"));
        assert_eq!((taken.lease, rest), (old.lease, vec!["lease"]));
        assert_eq!(old.taking_up(&old), (old.clone(), vec![]));
        for (key, example, _) in KEYS {
            let table: toml::Table = format!("{key} = {example}").parse().unwrap();
            let new = Config::from_table(&table).unwrap();
            let rest = old.taking_up(&new).1;
            let told = new != old && !LIVE.contains(&key);
            assert_eq!(rest, if told { vec![key] } else { vec![] }, "{key}");
        }
    }

    #[test]
    fn every_key_of_the_template_is_a_key() {
        let mut config = Config::default();
        for (key, example, _) in KEYS {
            let table: toml::Table = format!("{key} = {example}").parse().unwrap();
            assert!(config.set(key, &table[key]).is_ok(), "{key}");
        }
        config.namespaces.clear();
        config.check().unwrap();
    }

    #[test]
    fn mistakes_are_named() {
        assert!(complaint("capcity = \"5GB\"").contains("did you mean `capacity`"));
        assert!(complaint("colour = 1").contains("there are socket, listen"));
        assert!(complaint("capacity = \"5 apples\"").contains("`capacity`"));
        assert!(complaint("capacity = 5").contains("text in quotes"));
        assert!(complaint("lease = \"2s\"\n\ncapacity = ").contains("line 3"));
        assert!(complaint("metrics = \"0.0.0.0:80\"").contains("use 127.0.0.1:80"));
        assert!(complaint("lease = \"1h\"").contains("ms, s or min"));
        assert!(complaint("connections = 0").contains("between 1 and 65536"));
        assert!(
            complaint("connections = \"many\"")
                .contains("should be a number, like connections = 512")
        );
        assert!(complaint("lease = 10").contains("like lease = \"10s\""));
    }

    /// People edit these by hand: whatever they leave behind is refused in words, or can be used.
    #[test]
    fn mutated_files_never_panic() {
        // Those of the node do not go with those of tenants.
        let keys = KEYS.iter().filter(|(key, ..)| *key != "namespaces");
        let examples: String =
            keys.map(|(key, example, _)| format!("{key} = {example}\n")).collect();
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
        assert!((30..2900).contains(&used), "some can be used, some cannot: {used}");
    }

    #[test]
    fn without_a_word_it_takes_at_most_half_of_what_is_free() {
        let config = Config::default();
        let capacity = |free| config.capacity_of(ByteSize::gb(free));
        assert_eq!((capacity(100), capacity(10)), (ByteSize::gb(20), ByteSize::gb(5)));
    }
}
