//! `forebay doctor`: what commonly goes wrong, looked at one by one, each with its remedy.

mod dataset;
mod machine;
mod node;

use std::path::{Path, PathBuf};

use forebay_core::NodeName;
use forebay_server::Config;
use serde::Serialize;

use crate::{
    contact::NodeArg,
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
    /// Which node of the configuration's list this is, if the file does not say.
    #[arg(long, value_name = "NAME")]
    name: Option<NodeName>,
    #[command(flatten)]
    node: NodeArg,
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
  forebay doctor --node tls://a.example:7440
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
    let (config, mut findings) = configuration(args.config.as_deref(), args.name);
    let contacts = args.node.named().cloned().unwrap_or_else(|| config.socket.clone().into());
    let (on_node, is_running) = tokio::task::block_in_place(|| node::look(&contacts));
    let sockets: Vec<PathBuf> =
        contacts.endpoints().iter().filter_map(|one| one.path().map(Into::into)).collect();
    findings.extend(machine::look(&config, &sockets, is_running));
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

/// What the file says, as far as it can be used, and how that stands: all that keeps a node from starting.
fn configuration(file: Option<&Path>, name: Option<NodeName>) -> (Config, Vec<Finding>) {
    let Some(file) = file else {
        return (Config::default(), vec![ok("configuration", "the defaults")]);
    };
    let mend = "mend the file; `forebay serve --show-config` prints one to begin with";
    let config = match Config::read(file) {
        Ok(config) => Config { name: name.or(config.name.clone()), ..config },
        Err(error) => {
            let unusable = failed("configuration", output::one_line(&error), mend);
            return (Config::default(), vec![unusable]);
        }
    };
    let mut findings = vec![match config.check() {
        Ok(()) => ok("configuration", "can be used"),
        Err(error) => failed("configuration", output::one_line(&error), mend),
    }];
    if let Err(error) = config.check_files() {
        let remedy = "replace or mend the file; docs/security.md says how they are made";
        findings.push(failed("secrets", output::one_line(&error), remedy));
    }
    let remedy = "correct one of the two, unless it is meant";
    findings.extend(config.doubts().into_iter().map(|doubt| warning("nodes", doubt, remedy)));
    (config, findings)
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
