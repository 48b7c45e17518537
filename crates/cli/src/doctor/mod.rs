//! `forebay doctor`: what commonly goes wrong, looked at one by one, each with its remedy.

mod dataset;
mod machine;
mod node;

use std::path::PathBuf;

use forebay_server::Config;
use serde::Serialize;

use crate::{
    output::{self, Format, Verdict},
    reach::Reach,
};

/// Check this machine, the node and, if one is named, a dataset: what is well, what is not, and the remedy.
///
/// Nothing is changed. Exit code 0: all is well; 1: there are warnings; 2: something will not work.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The node's configuration file; by default the defaults.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The node's socket; by default the configuration's.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Also look whether this digest can be used, and its origin be reached.
    #[arg(long, value_name = "FILE")]
    digest: Option<PathBuf>,
    /// For people or for scripts.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[command(flatten)]
    reach: Reach,
}

const EXAMPLES: &str = "\
Examples:
  forebay doctor
  forebay doctor --config /etc/forebay.toml --digest train.digest
  forebay doctor --format json | jq '.[] | select(.state != \"ok\")'";

/// How something stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// It is well.
    Ok,
    /// It works, but not as well as it could, or not for long.
    Warning,
    /// It will not work.
    Failed,
}

/// What was found of one thing.
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
    let mut findings = Vec::new();
    let config = match args.config.as_deref().map(Config::read) {
        None => {
            findings.push(ok("configuration", "the defaults"));
            Config::default()
        }
        Some(Ok(config)) => {
            findings.push(ok("configuration", "can be used"));
            config
        }
        Some(Err(error)) => {
            let remedy = "mend the file; `forebay serve --show-config` prints one to begin with";
            findings.push(failed("configuration", output::one_line(&error), remedy));
            Config::default()
        }
    };
    let config = match args.socket {
        Some(socket) => Config { socket, ..config },
        None => config,
    };
    let (on_node, is_running) = node::look(&config);
    findings.extend(machine::look(&config, is_running));
    findings.extend(on_node);
    if let Some(digest) = &args.digest {
        findings.extend(dataset::look(digest, &args.reach.options()).await);
    }
    match args.format {
        Format::Json => output::json(&findings)?,
        Format::Text => output::data(&for_people(&findings))?,
    }
    let worst = findings.iter().map(|finding| finding.state).max();
    Ok(match worst.unwrap_or(State::Ok) {
        State::Ok => Verdict::Yes,
        State::Warning => Verdict::No,
        State::Failed => Verdict::Failed,
    })
}

fn for_people(findings: &[Finding]) -> String {
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
    fn a_finding_is_a_line_and_its_remedy_another() {
        let text = for_people(&[ok("kernel", "6.1"), failed("space", "none", "make some")]);
        assert_eq!(
            text,
            "ok       kernel           6.1\nfailed   space            none\n\
             \u{20}                         make some\n"
        );
    }
}
