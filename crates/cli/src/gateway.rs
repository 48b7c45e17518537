//! The gateway of a node: what `forebay serve` and the reference pages take from `[gateway]`.

use anyhow::{Context as _, ensure};
use forebay_gateway::{GatewayConfig, GatewayTenant, config, metrics};
use forebay_node::{Config, ExtraRows};

/// The configuration of the gateway, or `None` if the file has no `[gateway]`.
pub fn config_of(node: &Config) -> anyhow::Result<Option<GatewayConfig>> {
    let tenants: Vec<GatewayTenant> = node
        .tenants
        .iter()
        .map(|tenant| GatewayTenant {
            name: tenant.name.clone(),
            access_keys: tenant.access_keys.clone(),
            origin: tenant.origin.as_ref().map(|origin| origin.0.clone()),
        })
        .collect();
    let Some(table) = &node.gateway else {
        let with_keys = tenants.iter().find(|tenant| !tenant.access_keys.is_empty());
        if let Some(tenant) = with_keys {
            anyhow::bail!(
                "the tenant `{}` has `access_keys`, which are for the S3 endpoint; configure it in \
                 [gateway]",
                tenant.name.escape_debug()
            );
        }
        return Ok(None);
    };
    ensure!(
        node.idle_exit.is_none(),
        "`idle_exit` counts connections of jobs only and would stop the S3 endpoint; remove it"
    );
    GatewayConfig::parse(&table.0, &tenants).map(Some)
}

/// Checks the gateway's files.
pub fn check_files(node: &Config) -> anyhow::Result<()> {
    match config_of(node)? {
        Some(gateway) => forebay_gateway::Gateway::check_files(&gateway).context("in [gateway]"),
        None => Ok(()),
    }
}

/// Rows of the gateway as the node shows them.
pub fn extra_rows(rows: metrics::GatewayRows) -> ExtraRows {
    ExtraRows { gauges: rows.gauges, counters: rows.counters }
}

/// The page `docs/reference/config.md`.
pub fn config_page() -> String {
    Config::reference_page() + &config::reference_section()
}

/// The page `docs/reference/metrics.md`.
pub fn metrics_page() -> String {
    forebay_node::metrics_page(forebay_agent::metric_rows(), extra_rows(metrics::empty_rows()))
}
