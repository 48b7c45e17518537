//! Configuration of the gateway: the table `gateway` of the node's file, and what its tenants have
//! of it.

mod identity;
mod keys;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use forebay_auth::{KeyFileError, create_key_file, ensure_own_directory, read_key_file};
use forebay_core::{
    ByteSize,
    gateway::{rights::Authorise, versions::Freshness},
    units::parse_duration,
};
use http::Uri;
use serde::Deserialize;

pub use identity::{AssumedRole, IdentityBase, IdentityConfig};
pub use keys::{GatewayKey, KEYS, reference_section, template};

use crate::{
    objects::settings::{ObjectCacheSettings, PrefixRule, Rules},
    origin_client::Addressing,
};

/// A tenant of the node, as the gateway needs it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GatewayTenant {
    /// The name.
    pub name: String,
    /// Files of the access keys that its clients sign with.
    pub access_keys: Vec<PathBuf>,
    /// The origin identity: `origin` of the tenant.
    pub origin: Option<toml::Table>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    listen: String,
    endpoint: String,
    region: Option<String>,
    addressing: Option<String>,
    origin_ca: Option<PathBuf>,
    #[serde(default)]
    allow_http: bool,
    #[serde(default)]
    domains: Vec<String>,
    tls_certificate: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    #[serde(default)]
    trusted: bool,
    identity: Option<toml::Table>,
    sts_endpoint: Option<String>,
    max_connections: Option<usize>,
    max_requests: Option<usize>,
    memory: Option<String>,
    device: Option<PathBuf>,
    capacity: Option<String>,
    memory_cache: Option<String>,
    rights_lifetime: Option<String>,
    #[serde(default)]
    rules: Vec<RawRule>,
    first_byte_timeout: Option<String>,
    progress_timeout: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    bucket: Option<String>,
    #[serde(default)]
    prefix: String,
    freshness: Option<String>,
    authorise: Option<String>,
}

impl RawRule {
    fn parse(self) -> anyhow::Result<PrefixRule> {
        let freshness = match self.freshness.as_deref() {
            None | Some("always") => Freshness::Always,
            Some("immutable") => Freshness::Immutable,
            Some(time) => Freshness::Ttl(parse_duration(time).ok().with_context(|| {
                format!(
                    "`freshness` = \"{}\"; use always, immutable, or a time such as 30s",
                    time.escape_debug()
                )
            })?),
        };
        let authorise = match self.authorise.as_deref() {
            None | Some("object") => Authorise::Object,
            Some("prefix") => Authorise::Prefix,
            Some("bucket") => Authorise::Bucket,
            Some(other) => {
                bail!("`authorise` = \"{}\"; use object, prefix or bucket", other.escape_debug())
            }
        };
        Ok(PrefixRule { bucket: self.bucket, prefix: self.prefix.into(), freshness, authorise })
    }
}

/// The rules, each bucket and prefix once.
fn rules(raw: Vec<RawRule>) -> anyhow::Result<Vec<PrefixRule>> {
    let rules: Vec<PrefixRule> =
        raw.into_iter().map(RawRule::parse).collect::<anyhow::Result<_>>().context("`rules`")?;
    for (at, rule) in rules.iter().enumerate() {
        let is_same =
            |other: &PrefixRule| (&other.bucket, &other.prefix) == (&rule.bucket, &rule.prefix);
        ensure!(
            !rules[..at].iter().any(is_same),
            "`rules`: two rules have the bucket and prefix of number {}; keep one",
            at + 1
        );
    }
    Ok(rules)
}

/// The configuration of a gateway.
#[derive(Debug, Clone, PartialEq)]
pub struct GatewayConfig {
    /// Address of the endpoint.
    pub listen: SocketAddr,
    /// The origin.
    pub endpoint: Uri,
    /// The origin's region.
    pub region: String,
    /// How the origin's buckets are addressed.
    pub addressing: Addressing,
    /// Authorities of the origin's certificate.
    pub origin_ca: Option<PathBuf>,
    /// Names whose subdomains are buckets, in lower case.
    pub domains: Vec<String>,
    /// Certificate and key of the endpoint.
    pub tls: Option<TlsFiles>,
    /// Whether the published key is accepted.
    pub trusted: bool,
    /// Endpoint of the token service.
    pub sts_endpoint: Uri,
    /// Limit of connections.
    pub max_connections: usize,
    /// Limit of requests.
    pub max_requests: usize,
    /// Limit of bytes in flight.
    pub memory: ByteSize,
    /// File or block device for segments; `None` for the default.
    pub device: Option<PathBuf>,
    /// Flash to reserve; 0 keeps nothing.
    pub capacity: ByteSize,
    /// Memory for segments.
    pub memory_cache: ByteSize,
    /// Time for which an answer of the origin authorises.
    pub rights_lifetime: Duration,
    /// Rules of prefixes.
    pub rules: Vec<PrefixRule>,
    /// Time for the first byte of the origin's answer to a read.
    pub first_byte_timeout: Duration,
    /// Longest pause in a body.
    pub progress_timeout: Duration,
    /// The tenants with access keys.
    pub tenants: Vec<GatewayTenant>,
    /// The identity of each tenant, or the one of a trusted gateway.
    pub identities: Vec<IdentityConfig>,
}

/// Files of a certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate with its chain.
    pub certificate: PathBuf,
    /// The key.
    pub key: PathBuf,
}

const COUNT_MAX: usize = 1 << 16;
const MEMORY_MIN: ByteSize = ByteSize::mib(16);
const CAPACITY_MIN: ByteSize = ByteSize::mib(64);

impl GatewayConfig {
    /// Parses the table and the tenants, and refuses contradictions. Reads none of the files named.
    pub fn parse(table: &toml::Table, tenants: &[GatewayTenant]) -> anyhow::Result<Self> {
        let raw: RawConfig = table
            .clone()
            .try_into()
            .map_err(|error| in_one_line(&error))
            .context("in [gateway]")?;
        Self::from_raw(raw, tenants).context("in [gateway]")
    }

    fn from_raw(raw: RawConfig, tenants: &[GatewayTenant]) -> anyhow::Result<Self> {
        let listen: SocketAddr = raw.listen.parse().with_context(|| {
            format!(
                "`listen` = \"{}\" is not an address and a port, such as 127.0.0.1:9000",
                raw.listen
            )
        })?;
        let endpoint = origin_uri("endpoint", &raw.endpoint, raw.allow_http)?;
        let region = raw.region.unwrap_or_else(|| "us-east-1".to_owned());
        ensure!(
            !region.is_empty()
                && region.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'),
            "`region` = \"{}\" is not a region, such as eu-west-1",
            region.escape_debug()
        );
        let addressing = match raw.addressing.as_deref() {
            None | Some("path") => Addressing::Path,
            Some("virtual") => Addressing::Virtual,
            Some(other) => {
                bail!("`addressing` = \"{}\"; use path or virtual", other.escape_debug())
            }
        };
        let tls = match (raw.tls_certificate, raw.tls_key) {
            (Some(certificate), Some(key)) => Some(TlsFiles { certificate, key }),
            (None, None) => None,
            _ => bail!("`tls_certificate` and `tls_key` go together; give both or neither"),
        };
        let sts = raw.sts_endpoint.unwrap_or_else(|| format!("https://sts.{region}.amazonaws.com"));
        let sts_endpoint = origin_uri("sts_endpoint", &sts, raw.allow_http)?;
        let memory = size("memory", raw.memory.as_deref().unwrap_or("512MiB"))?;
        let capacity = size("capacity", raw.capacity.as_deref().unwrap_or("10GB"))?;
        ensure!(
            capacity == ByteSize::ZERO || capacity >= CAPACITY_MIN,
            "`capacity` is {capacity}; give at least {CAPACITY_MIN}, or 0B"
        );
        let rights_lifetime = parse_duration(raw.rights_lifetime.as_deref().unwrap_or("60s"))
            .map_err(anyhow::Error::msg)
            .context("`rights_lifetime`")?;
        ensure!(
            (Duration::from_secs(1)..=Duration::from_hours(1)).contains(&rights_lifetime),
            "`rights_lifetime` should be between 1s and 1h"
        );
        ensure!(memory >= MEMORY_MIN, "`memory` is {memory}; give at least {MEMORY_MIN}");
        let own = raw
            .identity
            .as_ref()
            .map(|identity| IdentityConfig::parse(identity, None, "node").context("`identity`"));
        let own = own.transpose()?;
        let (tenants, identities) = principals(tenants, own.as_ref(), raw.trusted)?;
        let config = Self {
            listen,
            endpoint,
            region,
            addressing,
            origin_ca: raw.origin_ca,
            domains: domains(&raw.domains)?,
            tls,
            trusted: raw.trusted,
            sts_endpoint,
            max_connections: count("max_connections", raw.max_connections, 1024)?,
            max_requests: count("max_requests", raw.max_requests, 512)?,
            memory,
            device: raw.device,
            capacity,
            memory_cache: size("memory_cache", raw.memory_cache.as_deref().unwrap_or("64MiB"))?,
            rights_lifetime,
            rules: rules(raw.rules)?,
            first_byte_timeout: pause("first_byte_timeout", raw.first_byte_timeout.as_deref())?,
            progress_timeout: pause("progress_timeout", raw.progress_timeout.as_deref())?,
            tenants,
            identities,
        };
        config.check_exposure()?;
        Ok(config)
    }

    /// The settings of the object path. `directory` is the node's: it holds the key of the names
    /// on flash, and the device unless another is named.
    pub fn cache_settings(&self, directory: &Path) -> anyhow::Result<ObjectCacheSettings> {
        let mut settings = ObjectCacheSettings {
            capacity: self.capacity,
            memory: self.memory_cache,
            rights_lifetime: self.rights_lifetime,
            rules: Rules::new(self.rules.clone()),
            ..ObjectCacheSettings::default()
        };
        if self.capacity > ByteSize::ZERO {
            ensure_own_directory(directory, 0o700).context("the directory of the node")?;
            let path = directory.join("gateway.key");
            let namespace = match create_key_file(&path) {
                Err(KeyFileError::Exists { .. }) => read_key_file(&path),
                created => created,
            };
            let secret = namespace.context("the key of the names on flash")?.to_key_file();
            settings.key =
                blake3::derive_key("forebay gateway segment names v1", secret.as_bytes());
            let default = || directory.join("gateway.flash");
            settings.device = Some(self.device.clone().unwrap_or_else(default));
        }
        Ok(settings)
    }

    /// Checks that clients of other machines are authenticated and encrypted (promise 4).
    fn check_exposure(&self) -> anyhow::Result<()> {
        if self.listen.ip().is_loopback() {
            return Ok(());
        }
        let (listen, port) = (self.listen, self.listen.port());
        let fix = if self.trusted {
            "a `trusted` gateway has no access keys of its own; give tenants `access_keys`"
        } else if self.tls.is_none() {
            "give `tls_certificate` and `tls_key`"
        } else {
            return Ok(());
        };
        bail!(
            "`listen` is {listen}, which other machines can reach: {fix}; or listen on \
             127.0.0.1:{port}"
        )
    }
}

/// The tenants with access keys and the identity of each, or the identity of a trusted gateway.
fn principals(
    tenants: &[GatewayTenant],
    own: Option<&IdentityConfig>,
    trusted: bool,
) -> anyhow::Result<(Vec<GatewayTenant>, Vec<IdentityConfig>)> {
    if let Some(tenant) =
        tenants.iter().find(|tenant| tenant.origin.is_some() && tenant.access_keys.is_empty())
    {
        bail!(
            "the tenant `{}` has an `origin` and no `access_keys`; give it the key of its clients",
            tenant.name.escape_debug()
        );
    }
    let with_keys: Vec<GatewayTenant> =
        tenants.iter().filter(|tenant| !tenant.access_keys.is_empty()).cloned().collect();
    if trusted {
        ensure!(
            with_keys.is_empty(),
            "`trusted` serves all processes of this machine with one key; remove it, or the \
             tenants' `access_keys`"
        );
        let own = own.context("`trusted` needs `identity`, the origin identity of all clients")?;
        return Ok((with_keys, vec![own.clone()]));
    }
    ensure!(
        !with_keys.is_empty(),
        "no client has an access key; give tenants `access_keys` and `origin`, or set `trusted = \
         true` for the processes of this machine"
    );
    let identity = |tenant: &GatewayTenant| {
        let name = tenant.name.escape_debug();
        let table = tenant.origin.as_ref().with_context(|| {
            format!("the tenant `{name}` has `access_keys`; say in `origin` as whom it reads")
        })?;
        IdentityConfig::parse(table, own, &tenant.name)
            .with_context(|| format!("`origin` of the tenant `{name}`"))
    };
    let identities = with_keys.iter().map(identity).collect::<anyhow::Result<_>>()?;
    Ok((with_keys, identities))
}

/// An endpoint: a scheme, a host and a port, nothing else.
fn origin_uri(key: &str, text: &str, allow_http: bool) -> anyhow::Result<Uri> {
    let shown = text.escape_debug();
    let uri: Uri = text.parse().with_context(|| {
        format!("`{key}` = \"{shown}\" is not a URL, such as https://s3.eu-west-1.amazonaws.com")
    })?;
    let scheme = uri.scheme_str().unwrap_or_default();
    ensure!(
        ["http", "https"].contains(&scheme),
        "`{key}` = \"{shown}\" has no scheme; write https:// before the host"
    );
    let authority = uri.authority().map(http::uri::Authority::as_str).unwrap_or_default();
    ensure!(
        !authority.contains('@'),
        "`{key}` has a user name in it; credentials belong in `identity` or `origin`"
    );
    ensure!(
        uri.path() == "/" && uri.query().is_none(),
        "`{key}` = \"{shown}\" has a path; give scheme, host and port only"
    );
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_loopback =
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|it| it.is_loopback());
    ensure!(
        scheme == "https" || is_loopback || allow_http,
        "`{key}` = \"{shown}\" is another machine, and http:// is not encrypted; use https://, or \
         set `allow_http = true`"
    );
    Ok(uri)
}

fn domains(names: &[String]) -> anyhow::Result<Vec<String>> {
    let names: Vec<String> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
    for name in &names {
        let is_label = |label: &str| {
            !label.is_empty()
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        ensure!(
            name.split('.').all(is_label),
            "`domains`: \"{}\" is not a domain, such as s3.cluster.internal",
            name.escape_debug()
        );
    }
    Ok(names)
}

fn size(key: &str, text: &str) -> anyhow::Result<ByteSize> {
    text.parse().with_context(|| format!("`{key}`"))
}

fn count(key: &str, value: Option<usize>, default: usize) -> anyhow::Result<usize> {
    let value = value.unwrap_or(default);
    ensure!((1..=COUNT_MAX).contains(&value), "`{key}` should be between 1 and {COUNT_MAX}");
    Ok(value)
}

fn pause(key: &str, value: Option<&str>) -> anyhow::Result<Duration> {
    let value = parse_duration(value.unwrap_or("30s")).map_err(anyhow::Error::msg);
    let value = value.with_context(|| format!("`{key}`"))?;
    let range = Duration::from_secs(1)..=Duration::from_mins(10);
    ensure!(range.contains(&value), "`{key}` should be between 1s and 10min");
    Ok(value)
}

/// An error of the TOML library without its line breaks.
fn in_one_line(error: &toml::de::Error) -> anyhow::Error {
    anyhow::anyhow!("{}", error.message().replace('\n', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = "listen = \"127.0.0.1:9000\"\nendpoint = \"https://s3.example\"\n";

    fn tenant(origin: &str) -> GatewayTenant {
        let origin = (!origin.is_empty()).then(|| origin.parse().unwrap());
        GatewayTenant { name: "team".to_owned(), access_keys: vec!["team.key".into()], origin }
    }

    fn parse(text: &str, tenants: &[GatewayTenant]) -> anyhow::Result<GatewayConfig> {
        GatewayConfig::parse(&text.parse().unwrap(), tenants)
    }

    fn error(text: &str, tenants: &[GatewayTenant]) -> String {
        format!("{:#}", parse(text, tenants).unwrap_err())
    }

    #[test]
    fn every_key_is_in_the_table_with_a_valid_example() {
        let all: String =
            KEYS.iter().map(|key| format!("{} = {}\n", key.name, key.example)).collect();
        parse(&all, &[]).unwrap();
        let unknown = error("colour = 1", &[]);
        let listed = unknown.split("expected one of").nth(1).unwrap();
        assert_eq!(listed.matches('`').count(), 2 * KEYS.len(), "{unknown}");
    }

    /// Promise 4: clients prove their identity, and connections to other machines are encrypted.
    #[test]
    fn other_machines_need_tls_and_access_keys() {
        let team = [tenant("file = \"k\"")];
        let beyond = LEAST.replace("127.0.0.1", "0.0.0.0");
        let tls = "tls_certificate = \"c\"\ntls_key = \"k\"\n";
        assert!(error(LEAST, &[]).contains("no client has an access key"));
        assert!(parse(LEAST, &team).is_ok());
        assert!(error(&beyond, &team).contains("give `tls_certificate` and `tls_key`"));
        assert!(parse(&format!("{beyond}{tls}"), &team).is_ok());
        let trusted = "trusted = true\nidentity = { anonymous = true }\n";
        assert!(parse(&format!("{LEAST}{trusted}"), &[]).is_ok());
        assert!(error(&format!("{beyond}{tls}{trusted}"), &[]).contains("or listen on 127.0.0.1"));
        assert!(error(&format!("{LEAST}{trusted}"), &team).contains("remove it"));
    }

    #[test]
    fn identities_are_of_one_kind() {
        let of = |origin: &str| parse(LEAST, &[tenant(origin)]).unwrap().identities[0].clone();
        assert_eq!(of("file = \"k\"").base, IdentityBase::File("k".into()));
        let assumed = of("profile = \"p\"\nrole = \"arn:aws:iam::1:role/r\"");
        assert_eq!(assumed.base, IdentityBase::Profile("p".into()));
        assert_eq!(assumed.role.unwrap().session_name, "forebay-team");
        let web = of("web_identity_token = \"t\"\nrole = \"arn:r\"");
        assert!(matches!(web.base, IdentityBase::WebIdentity { .. }) && web.role.is_none());
        let own = format!("{LEAST}identity = {{ instance_role = true }}\n");
        let by_node = parse(&own, &[tenant("role = \"arn:aws:iam::1:role/r\"")]).unwrap();
        assert_eq!(by_node.identities[0].base, IdentityBase::Machine);
        for (origin, remedy) in [
            ("", "say in `origin` as whom it reads"),
            ("file = \"a\"\nprofile = \"b\"", "several kinds"),
            ("session_name = \"x\"", "no kind of identity"),
            ("role = \"arn:x\"", "set `identity` in [gateway]"),
            ("file = \"a\"\nrole = \"x\"", "not the name of a role"),
            ("anonymous = true\nrole = \"arn:x\"", "cannot assume a role"),
            ("web_identity_token = \"t\"", "needs `role`"),
            ("key = \"x\"", "unknown field `key`"),
        ] {
            let error = error(LEAST, &[tenant(origin)]);
            assert!(error.contains(remedy), "{error}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let team = [tenant("file = \"k\"")];
        for (from, to, remedy) in [
            ("https://s3.example", "s3.example", "write https:// before"),
            ("https://s3.example", "http://s3.example", "allow_http"),
            ("https://s3.example", "https://s3.example/bucket", "has a path"),
            ("https://s3.example", "https://a:b@s3.example", "user name"),
            ("https://s3.example", "https://a b", "is not a URL"),
            ("127.0.0.1:9000", "9000", "not an address and a port"),
        ] {
            let error = error(&LEAST.replace(from, to), &team);
            assert!(error.contains(remedy), "{error}");
        }
        for (line, remedy) in [
            ("addressing = \"host\"", "use path or virtual"),
            ("tls_key = \"k\"", "go together"),
            ("memory = \"1MiB\"", "at least 16"),
            ("max_requests = 0", "between 1 and 65536"),
            ("progress_timeout = \"1h\"", "`progress_timeout`"),
            ("domains = [\"a..b\"]", "not a domain"),
            ("region = \"a/b\"", "not a region"),
            ("capacity = \"1MiB\"", "or 0B"),
            ("rules = [{ freshness = \"often\" }]", "use always, immutable"),
            ("rules = [{ authorise = \"all\" }]", "use object, prefix or bucket"),
            ("rules = [{}, { bucket = \"b\" }, {}]", "number 3; keep one"),
            ("listen2 = 1", "unknown field `listen2`"),
        ] {
            let error = error(&format!("{LEAST}{line}\n"), &team);
            assert!(error.contains(remedy) && !error.contains('\n'), "{error}");
        }
    }
}
