//! The keys of `[gateway]`: the one list from which the template and the reference page are made.

/// One key of the table, for the reference page.
pub struct GatewayKey {
    /// As written in the file.
    pub name: &'static str,
    /// The default, as written in the file; empty if the key is required.
    pub default: &'static str,
    /// A valid value.
    pub example: &'static str,
    /// What it sets.
    pub meaning: &'static str,
}

/// All keys of the table.
pub const KEYS: &[GatewayKey] = &[
    GatewayKey {
        name: "listen",
        default: "",
        example: "\"127.0.0.1:9000\"",
        meaning: "address of the S3 endpoint; beyond loopback it needs TLS and tenants with \
                  `access_keys`",
    },
    GatewayKey {
        name: "endpoint",
        default: "",
        example: "\"https://s3.eu-west-1.amazonaws.com\"",
        meaning: "the origin: scheme, host and port; `http://` only on loopback, or with \
                  `allow_http`",
    },
    GatewayKey {
        name: "region",
        default: "\"us-east-1\"",
        example: "\"eu-west-1\"",
        meaning: "region that requests to the origin are signed for",
    },
    GatewayKey {
        name: "addressing",
        default: "\"path\"",
        example: "\"virtual\"",
        meaning: "how the origin's buckets are addressed: `path` (endpoint/bucket) or `virtual` \
                  (bucket.endpoint)",
    },
    GatewayKey {
        name: "origin_ca",
        default: "the machine's authorities",
        example: "\"origin-ca.pem\"",
        meaning: "CA that signs the origin's certificate (PEM)",
    },
    GatewayKey {
        name: "allow_http",
        default: "false",
        example: "true",
        meaning: "send requests and data unencrypted to an `http://` origin on another machine",
    },
    GatewayKey {
        name: "domains",
        default: "[]",
        example: "[\"s3.cluster.internal\"]",
        meaning: "names of this endpoint whose subdomains are buckets (virtual-host style)",
    },
    GatewayKey {
        name: "tls_certificate",
        default: "none",
        example: "\"gateway.pem\"",
        meaning: "certificate of this endpoint, with its chain (PEM)",
    },
    GatewayKey {
        name: "tls_key",
        default: "none",
        example: "\"gateway.key\"",
        meaning: "private key of `tls_certificate` (PEM)",
    },
    GatewayKey {
        name: "trusted",
        default: "false",
        example: "true",
        meaning: "serve the processes of this machine with one published key and `identity`; \
                  loopback only, no `access_keys`",
    },
    GatewayKey {
        name: "identity",
        default: "none",
        example: "{ profile = \"training\" }",
        meaning: "origin identity of a `trusted` gateway, and of roles that name no other: one of \
                  `file`, `profile`, `web_identity_token` with `role`, `instance_role = true`, \
                  `anonymous = true`; with `role` the others assume it",
    },
    GatewayKey {
        name: "sts_endpoint",
        default: "`https://sts.REGION.amazonaws.com`",
        example: "\"https://sts.eu-west-1.amazonaws.com\"",
        meaning: "endpoint that assumes roles",
    },
    GatewayKey {
        name: "max_connections",
        default: "1024",
        example: "4096",
        meaning: "concurrent connections, 1 to 65536; beyond them requests are answered with 503 \
                  SlowDown",
    },
    GatewayKey {
        name: "max_requests",
        default: "512",
        example: "1024",
        meaning: "concurrent requests, 1 to 65536; beyond them 503 SlowDown",
    },
    GatewayKey {
        name: "memory",
        default: "\"512MiB\"",
        example: "\"1GiB\"",
        meaning: "memory for bodies in flight, at least 16MiB; a request reserves 512KiB, a \
                  DeleteObjects request its body as well; beyond it 503 SlowDown",
    },
    GatewayKey {
        name: "device",
        default: "`gateway.flash` in `directory`",
        example: "\"/dev/nvme2n1\"",
        meaning: "file, which is created, or block device for segments of objects; of the gateway \
                  alone",
    },
    GatewayKey {
        name: "capacity",
        default: "\"10GB\"",
        example: "\"500GB\"",
        meaning: "flash to reserve for segments, at least 64MiB; 0B keeps nothing, and every \
                  request passes",
    },
    GatewayKey {
        name: "memory_cache",
        default: "\"64MiB\"",
        example: "\"1GiB\"",
        meaning: "memory for segments that were fetched lately",
    },
    GatewayKey {
        name: "rights_lifetime",
        default: "\"60s\"",
        example: "\"5min\"",
        meaning: "time for which an answer of the origin authorises a tenant's hits: 1s to 1h",
    },
    GatewayKey {
        name: "rules",
        default: "[]",
        example: "[{ bucket = \"data\", prefix = \"day=\", freshness = \"immutable\", \
                  authorise = \"prefix\" }]",
        meaning: "per prefix, the longest applies: `freshness` is `always` (the origin confirms \
                  the version on each request), a time such as `30s`, or `immutable`; `authorise` \
                  says how far an answer of the origin authorises: `object`, `prefix`, `bucket`",
    },
    GatewayKey {
        name: "first_byte_timeout",
        default: "\"30s\"",
        example: "\"10s\"",
        meaning: "time for the first byte of the origin's answer to a read: 1s to 10min",
    },
    GatewayKey {
        name: "progress_timeout",
        default: "\"30s\"",
        example: "\"60s\"",
        meaning: "longest pause in a body of a client or of the origin: 1s to 10min",
    },
];

/// The table with every key at an example, commented out.
pub fn template() -> String {
    let mut text = String::from(
        "\n# The S3 endpoint of Tier. Tenants have `access_keys` (files) and `origin` (an \
         identity).\n# [gateway]\n",
    );
    for GatewayKey { name, example, meaning, .. } in KEYS {
        text += &format!("# {meaning}\n# {name} = {example}\n");
    }
    text
}

/// The section of `docs/reference/config.md`.
pub fn reference_section() -> String {
    let mut page = String::from(
        "\n## `[gateway]`\n\n\
         The S3 endpoint of Tier ([guide](../guide/gateway.md)). A change needs a restart.\n\n\
         | key | default | example | meaning |\n|---|---|---|---|\n",
    );
    for GatewayKey { name, default, example, meaning } in KEYS {
        let default = match *default {
            "" => "required".to_owned(),
            word if word.starts_with(['"', '[', '`']) || word.parse::<u64>().is_ok() => {
                format!("`{}`", word.trim_matches('`'))
            }
            word => word.to_owned(),
        };
        page += &format!("| `{name}` | {default} | `{example}` | {meaning} |\n");
    }
    page
}
