//! `forebay doctor`: checks for common problems, each with its remedy.

mod dataset;
mod machine;
mod node;

use std::path::{Path, PathBuf};

use forebay_core::NodeName;
use forebay_node::Config;
use serde::Serialize;

use crate::{
    args::{node::NodeArg, origin::OriginAccess},
    output::{self, Format, Verdict},
};

/// Check the machine, the node and, with --digest, a dataset. Name a remedy for each problem.
///
/// The command changes nothing. Exit codes: 0 if all checks pass, 1 after warnings, 2 after a
/// failure.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Check this configuration file of the node [default: the default settings].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Be the node of this name in the list of the configuration.
    #[arg(long, value_name = "NAME")]
    name: Option<NodeName>,
    #[command(flatten)]
    node: NodeArg,
    /// Also check this digest and its origin.
    #[arg(long, value_name = "FILE")]
    digest: Option<PathBuf>,
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[command(flatten)]
    access: OriginAccess,
}

const EXAMPLES: &str = "\
Examples:
  forebay doctor
  forebay doctor --config /etc/forebay.toml --digest train.digest
  forebay doctor --node tls://a.example:7070
  forebay doctor --format json | jq '.[] | select(.state != \"ok\")'";

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// No problem.
    Ok,
    /// It works, but badly or not for long.
    Warning,
    /// It does not work.
    Failed,
}

/// One check and its result.
#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    state: State,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

fn ok(check: &'static str, found: impl Into<String>) -> Finding {
    Finding { check, state: State::Ok, found: found.into(), remedy: None }
}

fn warning(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Finding {
    let (found, remedy) = (found.into(), Some(remedy.into()));
    Finding { check, state: State::Warning, found, remedy }
}

fn failed(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { state: State::Failed, ..warning(check, found, remedy) }
}

pub async fn run(args: Args) -> anyhow::Result<Verdict> {
    let (config, mut findings) = check_config(args.config.as_deref(), args.name);
    if args.config.is_none() && args.node.named().is_some() {
        // The configuration of the node is not known here.
        findings = vec![ok("configuration", "default settings, for the checks of this machine")];
    }
    let contacts = args.node.named().cloned().unwrap_or_else(|| config.socket.clone().into());
    let (node_findings, is_running) =
        tokio::task::block_in_place(|| node::check(&contacts, args.node.named().is_some()));
    let sockets: Vec<PathBuf> =
        contacts.endpoints().iter().filter_map(|one| one.path().map(Into::into)).collect();
    findings.extend(machine::check(&config, &sockets, is_running));
    findings.extend(node_findings);
    if let Some(digest) = &args.digest {
        findings.extend(dataset::check(digest, &args.access.options()).await);
    }
    match args.format {
        Format::Json => output::json(&findings)?,
        Format::Text => output::data(&to_text(&findings))?,
    }
    let worst = findings.iter().map(|finding| finding.state).max();
    Ok(match worst.unwrap_or(State::Ok) {
        State::Ok => Verdict::Yes,
        State::Warning => Verdict::No,
        State::Failed => Verdict::Failed,
    })
}

/// Reads and checks a configuration file: everything that keeps a node from starting.
fn check_config(file: Option<&Path>, name: Option<NodeName>) -> (Config, Vec<Finding>) {
    let Some(file) = file else {
        return (Config::default(), vec![ok("configuration", "default settings")]);
    };
    let remedy = "correct the file; `forebay serve --print-config` prints a template";
    let config = match Config::read(file) {
        Ok(config) => Config { name: name.or(config.name.clone()), ..config },
        Err(error) => {
            let unusable = failed("configuration", output::one_line(&error), remedy);
            return (Config::default(), vec![unusable]);
        }
    };
    let mut findings = vec![match config.check() {
        Ok(()) => ok("configuration", "valid"),
        Err(error) => failed("configuration", output::one_line(&error), remedy),
    }];
    if let Err(error) = config.check_files() {
        let remedy = "replace or correct the file; docs/guide/security.md shows how to make it";
        findings.push(failed("secrets", output::one_line(&error), remedy));
    }
    let remedy = "correct one of the two, unless this is intended";
    findings.extend(config.warnings().into_iter().map(|found| warning("nodes", found, remedy)));
    (config, findings)
}

fn to_text(findings: &[Finding]) -> String {
    let line = |finding: &Finding| {
        let state = match finding.state {
            State::Ok => "ok",
            State::Warning => "warning",
            State::Failed => "failed",
        };
        let remedy = finding.remedy.iter().map(|remedy| format!("{:<26}{remedy}\n", ""));
        let remedy: String = remedy.collect();
        format!("{state:<9}{:<17}{}\n{remedy}", finding.check, finding.found)
    };
    findings.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_and_its_remedy_are_one_line_each() {
        let text = to_text(&[ok("kernel", "6.1"), failed("space", "none", "make some")]);
        assert_eq!(
            text,
            "ok       kernel           6.1\nfailed   space            none\n\
             \u{20}                         make some\n"
        );
    }
}
