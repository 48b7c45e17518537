//! EVStore's published claims beside results of its policies and of `group` on public traces.
//!
//! Writes one section of `docs/results/reproductions.md`. The dissertation's figures are pictures
//! without numbers, so the claims of its text are compared. Figures in sentences are computed.

use std::fmt::Write as _;

use forebay_core::embeddings::{PolicyKind, TableId};

use super::{
    report::{Report, Row},
    run::{CacheShare, Simulation, Tally},
    trace::Trace,
};
use crate::Section;

/// The dissertation's default cache size.
const DEFAULT: f64 = 0.05;
/// Sizes of figure 5.1.
const FIGURE_5_1: [f64; 6] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2];
/// Sizes over the range of figure 7.3.
const FIGURE_7_3: [f64; 9] = [0.0005, 0.002, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.9];
/// Numbers of tables in figure 7.4.
const TABLES: [u16; 5] = [5, 10, 15, 20, 26];

/// The policies of figures 7.3 to 7.5, and `group`.
const FEW: [PolicyKind; 5] = [
    PolicyKind::Lru,
    PolicyKind::ClockPro,
    PolicyKind::Cacheus,
    PolicyKind::EvLfu,
    PolicyKind::Group,
];
/// The dissertation's classic policies; `ClockLIRS` is not implemented here.
const CLASSICS: [PolicyKind; 9] = [
    PolicyKind::Lru,
    PolicyKind::Clock,
    PolicyKind::LeCaR,
    PolicyKind::Lirs,
    PolicyKind::Arc,
    PolicyKind::Lfu,
    PolicyKind::Car,
    PolicyKind::Cacheus,
    PolicyKind::ClockPro,
];
const EV: [PolicyKind; 3] = [PolicyKind::EvCar, PolicyKind::EvArc, PolicyKind::EvLfu];

/// Runs a simulation, with or without a progress display.
pub type Run<'a> = dyn FnMut(&Simulation, &Trace) -> Report + 'a;

/// Experiments 1 to 4. The first trace stands for Criteo-Kaggle; all traces are the datasets of
/// experiment 4.
pub fn embeddings(traces: &[Trace], run: &mut Run<'_>) -> Section {
    let mut section = Section::default();
    let criteo = &traces[0];
    let _ = write!(
        section.text,
        "Criteo-Kaggle's rows may not be redistributed. {} takes its place: it has the sizes and \
         dependencies of its tables and nothing else, with independent keys and no drift. Hits are \
         counted in two ways: in one pass without its first fifth; and, as in the dissertation, in \
         all of a second pass over the same trace, which favours policies that learn slowly.\n\n",
        described(criteo)
    );
    figure_5_1(criteo, run, &mut section);
    experiment_1(criteo, run, &mut section);
    experiment_2(criteo, run, &mut section);
    experiment_3(criteo, run, &mut section);
    experiment_4(traces, run, &mut section);
    section.wrap();
    section
}

fn described(trace: &Trace) -> String {
    let kind = if trace.synthetic() { "synthetic" } else { "real" };
    format!(
        "`{}` ({kind}, {} requests, {} tables)",
        trace.name(),
        trace.len(),
        trace.tables().len()
    )
}

fn simulate(policies: &[PolicyKind], shares: &[f64], trace: &Trace, run: &mut Run<'_>) -> Report {
    let mut simulation = Simulation::new(policies.to_vec());
    simulation.shares = shares.iter().map(|share| CacheShare::new(*share)).collect();
    simulation.replay = true;
    simulation.bounds = false;
    run(&simulation, trace)
}

fn command(names: &[PolicyKind], shares: &[f64]) -> String {
    let names: Vec<&str> = names.iter().map(|policy| policy.name()).collect();
    let shares: Vec<String> =
        shares.iter().map(|share| CacheShare::new(*share).to_string()).collect();
    format!(
        "forebay embed sim TRACE --policy {} --cache {} --replay",
        names.join(","),
        shares.join(",")
    )
}

/// Writes a heading with the command that gives the same figures.
fn begin(section: &mut Section, title: &str, policies: &[PolicyKind], shares: &[f64]) {
    let _ = write!(section.text, "### {title}\n\n`{}`\n\n", command(policies, shares));
}

fn header(section: &mut Section, columns: impl IntoIterator<Item = String>) {
    let columns: Vec<String> = columns.into_iter().collect();
    let _ = writeln!(section.text, "| | {} |", columns.join(" | "));
    let _ = writeln!(section.text, "|---|{}", "---|".repeat(columns.len()));
}

fn line(section: &mut Section, name: &str, cells: impl IntoIterator<Item = String>) {
    let cells: Vec<String> = cells.into_iter().collect();
    let _ = writeln!(section.text, "| {name} | {} |", cells.join(" | "));
}

fn percent(share: f64) -> String {
    format!("{:.2}", share * 100.0)
}

/// Perfect hits of the first and of the second pass.
fn twice(row: &Row) -> String {
    format!("{} / {}", percent(row.single.perfect_rate()), percent(replayed(row).perfect_rate()))
}

fn replayed(row: &Row) -> Tally {
    row.replay.expect("requested")
}

/// Row of a policy and a size.
fn row(report: &Report, policy: PolicyKind, share: f64) -> &Row {
    report.row(policy, CacheShare::new(share)).expect("requested")
}

/// Difference to the best of other policies, in points: in the first and in the second pass.
fn ahead(report: &Report, policy: PolicyKind, others: &[PolicyKind], share: f64) -> (f64, f64) {
    let best = |rate: &dyn Fn(&Row) -> f64| {
        let others = others.iter().map(|other| rate(row(report, *other, share)));
        (rate(row(report, policy, share)) - others.fold(0.0, f64::max)) * 100.0
    };
    (best(&|row| row.single.perfect_rate()), best(&|row| replayed(row).perfect_rate()))
}

fn figure_5_1(criteo: &Trace, run: &mut Run<'_>, section: &mut Section) {
    let policies = [
        PolicyKind::Lru,
        PolicyKind::Lfu,
        PolicyKind::Arc,
        PolicyKind::ClockPro,
        PolicyKind::Cacheus,
    ];
    begin(section, "Figure 5.1: individual and perfect hits", &policies, &FIGURE_5_1);
    section.text.push_str(
        "Published: with caches of 0.5 to 20 %, 60 to 90 % of individual lookups hit, but only 1 \
         to 50 % of requests are perfect. Here, individual / perfect hits in percent, one \
         pass:\n\n",
    );
    let report = simulate(&policies, &FIGURE_5_1, criteo, run);
    header(section, FIGURE_5_1.map(|share| CacheShare::new(share).to_string()));
    for policy in policies {
        let cells = FIGURE_5_1.map(|share| {
            let tally = row(&report, policy, share).single;
            format!("{} / {}", percent(tally.hit_rate()), percent(tally.perfect_rate()))
        });
        line(section, policy.name(), cells);
    }
    let rates = |rate: &dyn Fn(&Tally) -> f64| {
        let all = report.rows.iter().map(|row| rate(&row.single) * 100.0);
        all.fold((f64::INFINITY, 0.0_f64), |(low, high), rate| (low.min(rate), high.max(rate)))
    };
    let (individual, perfect) = (rates(&Tally::hit_rate), rates(&Tally::perfect_rate));
    let _ = write!(
        section.text,
        "\nHere as well: {:.0} to {:.0} % of lookups hit, and {:.1} to {:.0} % of requests are \
         perfect.\n\n",
        individual.0, individual.1, perfect.0, perfect.1
    );
}

fn experiment_1(criteo: &Trace, run: &mut Run<'_>, section: &mut Section) {
    let policies = [&CLASSICS[..], &EV, &[PolicyKind::Group]].concat();
    begin(section, "Experiment 1 (figures 7.1 and 7.2): all policies", &policies, &[DEFAULT]);
    section.text.push_str(
        "Published: with a cache of 5 %, EV-CAR, EV-ARC and EV-LFU have the most perfect hits, up \
         to 18 % more. EV-CAR and EV-ARC lose no individual hits, EV-LFU does. Here, in \
         percent:\n\n",
    );
    let report = simulate(&policies, &[DEFAULT], criteo, run);
    let columns = ["perfect", "individual", "perfect, second pass", "individual, second pass"];
    header(section, columns.map(str::to_owned));
    for policy in &policies {
        let row = row(&report, *policy, DEFAULT);
        let tallies = [row.single, replayed(row)];
        let cells = tallies.map(|t| [percent(t.perfect_rate()), percent(t.hit_rate())]);
        line(section, policy.name(), cells.concat());
    }
    section.text.push_str(
        "\nDifference in perfect hits to the best classic policy, in points, one pass and second \
         pass: ",
    );
    let differences = EV.iter().chain(&[PolicyKind::Group]).map(|policy| {
        let (once, again) = ahead(&report, *policy, &CLASSICS, DEFAULT);
        format!("{} {once:+.2} and {again:+.2}", policy.name())
    });
    let _ = write!(section.text, "{}.\n\n", differences.collect::<Vec<_>>().join("; "));
}

fn experiment_2(criteo: &Trace, run: &mut Run<'_>, section: &mut Section) {
    begin(section, "Experiment 2 (figure 7.3): cache sizes", &FEW, &FIGURE_7_3);
    section.text.push_str(
        "Published: EV-LFU is ahead at every size, by up to 35 % of LRU and up to 10 % of Cacheus \
         and CLOCK-Pro. Here, perfect hits in percent, one pass / second pass:\n\n",
    );
    let report = simulate(&FEW, &FIGURE_7_3, criteo, run);
    header(section, FIGURE_7_3.map(|share| CacheShare::new(share).to_string()));
    for policy in FEW {
        line(section, policy.name(), FIGURE_7_3.map(|share| twice(row(&report, policy, share))));
    }
    section.pictures.push(("evstore-figure-7-3.svg", report.svg()));
    section
        .text
        .push_str("\n![perfect hits over cache sizes](reproductions/evstore-figure-7-3.svg)\n\n");
    let most = |policy: PolicyKind, others: &[PolicyKind]| {
        let all = FIGURE_7_3.map(|share| ahead(&report, policy, others, share));
        all.iter().fold((f64::MIN, f64::MIN), |most, one| (most.0.max(one.0), most.1.max(one.1)))
    };
    let least = |policy: PolicyKind, others: &[PolicyKind]| {
        let all = FIGURE_7_3.map(|share| ahead(&report, policy, others, share).0);
        all.into_iter().fold(f64::MAX, f64::min)
    };
    let adaptive = [PolicyKind::ClockPro, PolicyKind::Cacheus];
    let (lru, better) =
        (most(PolicyKind::EvLfu, &[PolicyKind::Lru]), most(PolicyKind::EvLfu, &adaptive));
    let _ = write!(
        section.text,
        "EV-LFU is ahead of LRU by up to {:.1} points ({:.1} in the second pass), and of the \
         better of Cacheus and CLOCK-Pro by up to {:.1} ({:.1}). It is behind them by up to {:.1} \
         where the cache is small or large. In one pass, group is at most {:.1} points behind the \
         best of the others.\n\n",
        lru.0,
        lru.1,
        better.0,
        better.1,
        least(PolicyKind::EvLfu, &adaptive).min(0.0).abs(),
        least(PolicyKind::Group, &FEW[..4]).min(0.0).abs(),
    );
}

fn experiment_3(criteo: &Trace, run: &mut Run<'_>, section: &mut Section) {
    begin(section, "Experiment 3 (figure 7.4): number of tables", &FEW, &[DEFAULT]);
    section.text.push_str(
        "Published: with more tables EV-LFU gains, and classic policies lose. The dissertation \
         does not say which tables were used; here they are the first ones, with a cache of 5 % of \
         their rows. Perfect hits in percent, one pass / second pass:\n\n",
    );
    let reports = TABLES.map(|count| {
        let tables: Vec<TableId> = (0..count).map(TableId).collect();
        simulate(&FEW, &[DEFAULT], &criteo.with_tables(&tables), run)
    });
    header(section, TABLES.map(|count| format!("{count} tables")));
    for policy in FEW {
        let cells = reports.each_ref().map(|report| twice(row(report, policy, DEFAULT)));
        line(section, policy.name(), cells);
    }
    let ratio = |report: &Report| {
        let rate = |policy| row(report, policy, DEFAULT).single.perfect_rate();
        let (ev, lru) = (rate(PolicyKind::EvLfu), rate(PolicyKind::Lru));
        if lru > 0.0 { format!("{:.2}", ev / lru) } else { "(LRU has none)".to_owned() }
    };
    let ratios: Vec<String> = reports.iter().map(ratio).collect();
    let _ = write!(
        section.text,
        "\nEvery policy has fewer perfect hits with more tables, because each table may miss. The \
         lead of EV-LFU grows: {} times LRU's perfect hits, from the fewest tables to the \
         most.\n\n",
        ratios.join(", ")
    );
}

fn experiment_4(traces: &[Trace], run: &mut Run<'_>, section: &mut Section) {
    begin(section, "Experiment 4 (figure 7.5): datasets", &FEW, &[DEFAULT]);
    section.text.push_str(
        "Published: EV-LFU is best on Avazu, Criteo-Kaggle and Criteo-Terabyte. None of these may \
         be redistributed; other traces are used here. Perfect hits in percent, one pass / second \
         pass:\n\n",
    );
    let reports: Vec<Report> =
        traces.iter().map(|trace| simulate(&FEW, &[DEFAULT], trace, run)).collect();
    header(section, traces.iter().map(described));
    for policy in FEW {
        line(
            section,
            policy.name(),
            reports.iter().map(|report| twice(row(report, policy, DEFAULT))),
        );
    }
    let best = |report: &Report| {
        let rate = |policy: &PolicyKind| row(report, *policy, DEFAULT).single.perfect_rate();
        let best = FEW.into_iter().max_by(|a, b| rate(a).total_cmp(&rate(b)));
        let best = best.filter(|best| rate(best) > 0.0).map_or("no policy", PolicyKind::name);
        format!("{best} on {}", report.trace)
    };
    let best: Vec<String> = reports.iter().map(best).collect();
    let _ = write!(
        section.text,
        "\nMost perfect hits in one pass: {}. Where popularity drifts, a count that only grows \
         keeps keys that were popular once, so EV-LFU does not win everywhere here.\n",
        best.join(", ")
    );
}
