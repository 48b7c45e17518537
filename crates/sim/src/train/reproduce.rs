//! Quiver's published figures beside those of its policies and of forebay's in the simulator.
//!
//! Writes one section of `docs/results/reproductions.md`. Figures in sentences are computed, so
//! that they cannot become stale.

use std::fmt::Write as _;

use forebay_core::ByteSize;

use super::{
    bounds,
    outcome::Outcome,
    plot,
    policy::Policy,
    scenario::{Scenario, Setup},
};
use crate::Section;

/// Simulates one setup under one policy.
pub type Run<'a> = dyn FnMut(&Scenario, &Setup, Policy) -> Outcome + 'a;

/// Parts of the section, by their names on the command line.
pub const PARTS: [&str; 5] = ["one-job", "table-3", "figures-4-5", "figure-6", "figure-7"];

/// The section on training, or one part of it.
pub fn train(part: Option<&str>, run: &mut Run<'_>) -> Section {
    let mut section = Section::default();
    let makers = [one_job, table_3, figures_4_and_5, figure_6, figure_7];
    for (name, make) in PARTS.into_iter().zip(makers) {
        if part.is_none_or(|part| part == name) {
            make(run, &mut section);
        }
    }
    section.wrap();
    section
}

/// Loads a built-in scenario, and writes a heading with two commands: one prints this part, the
/// other the details of its runs.
fn begin(section: &mut Section, part: &str, [title, name, more]: [&str; 3]) -> Scenario {
    let scenario = Scenario::built_in(name).expect("a built-in scenario");
    let _ = write!(
        section.text,
        "### {title}\n\n`scenarios/{name}.toml`, seed {}. `forebay sim reproduce {part}` prints \
         this; `forebay sim {more}` shows its runs.\n\n",
        scenario.seed
    );
    scenario
}

fn seconds(outcome: &Outcome) -> f64 {
    outcome.jobs.iter().map(|job| job.seconds).sum::<f64>() / outcome.jobs.len() as f64
}

fn one_job(run: &mut Run<'_>, section: &mut Section) {
    let more = "compare one-job --policy none,lru,forebay";
    let scenario = begin(section, "one-job", ["One job alone", "one-job", more]);
    section.text.push_str(
        "No reading order gets more than the cached share c of an epoch from the cache. Under a \
         random order, LRU gets c + (1 − c)·ln(1 − c).\n\n\
         | c | LRU, in theory | LRU | forebay | bound | forebay: origin bytes per epoch, relative \
         to (1 − c) |\n\
         |---|---|---|---|---|---|\n",
    );
    for setup in &scenario.setups {
        let lru = run(&scenario, setup, Policy::Lru);
        let ours = run(&scenario, setup, Policy::Forebay);
        let dataset = &setup.datasets[0];
        let share = setup.capacity.0 as f64 / dataset.size().0 as f64;
        let theory = share + (1.0 - share) * (1.0 - share).ln();
        let epochs = ours.reads().items as f64 / dataset.items as f64;
        let origin = ours.datasets[0].origin_bytes as f64 / epochs / dataset.size().0 as f64;
        let _ = writeln!(
            section.text,
            "| {:.0} % | {:.1} % | {:.1} % | {:.1} % | {:.0} % | {:.3} |",
            share * 100.0,
            theory * 100.0,
            lru.reads().hit_rate() * 100.0,
            ours.reads().hit_rate() * 100.0,
            share * 100.0,
            origin / (1.0 - share),
        );
    }
    section.text.push('\n');
}

/// Published seconds for 7000 mini-batches: miss, hit, co-operative miss.
const TABLE_3: [(&str, [f64; 3]); 3] = [
    ("resnet50", [2505.0, 646.0, 1064.0]),
    ("inception", [2874.0, 1274.0, 1817.0]),
    ("deepspeech2", [1614.0, 1234.0, 1265.0]),
];

fn table_3(run: &mut Run<'_>, section: &mut Section) {
    let more = "compare quiver-table3 --policy none,hit,quiver,forebay";
    let title = "Table 3: seven jobs of one model";
    let scenario = begin(section, "table-3", [title, "quiver-table3", more]);
    section.text.push_str(
        "Seconds for 7000 mini-batches. Misses and hits calibrate the model (see the file). The \
         co-operative times are results of the policies, with a cache of a fifth of the \
         dataset.\n\n\
         | | | published | the paper's policy | forebay | bound |\n|---|---|---|---|---|---|\n",
    );
    let mut ratios = Vec::new();
    for (setup, (model, [miss, hit, shared])) in scenario.setups.iter().zip(TABLE_3) {
        assert_eq!(setup.variant.as_deref(), Some(model), "the variants match the table");
        let mut of = |policy| seconds(&run(&scenario, setup, policy));
        let [none, all, quiver, ours] =
            [Policy::None, Policy::Hit, Policy::Quiver, Policy::Forebay].map(&mut of);
        let bound = bounds::mean_batch_seconds(setup) * 7000.0;
        let _ = write!(
            section.text,
            "| {model} | miss | {miss:.0} | {none:.0} | | |\n\
             | | hit | {hit:.0} | {all:.0} | | |\n\
             | | co-operative | {shared:.0} | {quiver:.0} | {ours:.0} | {bound:.0} |\n"
        );
        ratios.push(format!("{:.2} ({model})", shared / quiver));
    }
    let _ = write!(
        section.text,
        "\nThe published co-operative times are longer than those of the published policy here, by \
         factors of {}. Fetching does not explain the difference. For ResNet50, seven machines \
         fetch 1.2 GB/s together, as their misses show. Jobs that share every fetch need only 0.67 \
         GB/s to be as fast as with hits, and were measured at 0.4 GB/s. The cost of lookups, \
         inserts and waits in the paper's system is not published and not simulated. The simulated \
         policy loses time whenever jobs move to the next chunk, of which nothing is cached: \
         Algorithm 1 does not prefetch. Loading the next chunk in the background, as the text says \
         elsewhere, would remove even that.\n\n",
        ratios.join(", ")
    );
}

fn figures_4_and_5(run: &mut Run<'_>, section: &mut Section) {
    let more = "run quiver-figure4-5 --policy none --plot stages.svg`, and with `--policy hit";
    let title = "Figures 4 and 5: stages of a mini-batch";
    let scenario = begin(section, "figures-4-5", [title, "quiver-figure4-5", more]);
    section.text.push_str(
        "The paper shows pictures: with remote reads the GPUs are idle most of the time, with hits \
         hardly ever.\n\n\
         | | ms/mini-batch | GPUs busy | reading | transforming |\n|---|---|---|---|---|\n",
    );
    for (policy, what, file) in
        [(Policy::None, "remote reads", "figure-4.svg"), (Policy::Hit, "hits", "figure-5.svg")]
    {
        let outcome = run(&scenario, &scenario.setups[0], policy);
        let job = &outcome.jobs[0];
        let mean = |of: &dyn Fn(&super::StageTimes) -> f64| {
            outcome.stages.iter().map(of).sum::<f64>() / outcome.stages.len() as f64 * 1e3
        };
        let _ = writeln!(
            section.text,
            "| {what} | {:.1} | {:.0} % | {:.0} ms | {:.0} ms |",
            job.batch_seconds.expect("it computes for 20 s") * 1e3,
            job.gpu_busy * 100.0,
            mean(&|stage| stage.transform_from - stage.read_from),
            mean(&|stage| stage.ready_from - stage.transform_from),
        );
        section.pictures.push((file, plot::stages_alone(&outcome)));
    }
    section.text.push_str(
        "\n![stages with remote reads](reproductions/figure-4.svg)\n\
         ![stages with hits](reproductions/figure-5.svg)\n\n\
         Reading includes waiting for the job's link behind earlier mini-batches. The paper does \
         not say how long transforming takes. 500 ms on eight workers are an assumption that does \
         not affect the speed.\n\n",
    );
}

/// Published multiples of the throughput without a cache, for Quiver and LRU.
const FIGURE_6: [(&str, &str, &str); 3] =
    [("100GB", "about 1.6", "–"), ("200GB", "–", "–"), ("700GB", "2.32", "2.2")];

fn figure_6(run: &mut Run<'_>, section: &mut Section) {
    let more = "compare quiver-figure6 --policy none,lru,quiver,forebay";
    let title = "Figure 6: twelve jobs, 48 GPUs, one cache";
    let scenario = begin(section, "figure-6", [title, "quiver-figure6", more]);
    section.text.push_str(
        "Speed as a multiple of that without a cache, on average over the twelve jobs.\n\n\
         | cache | LRU, published | LRU | Quiver, published | the paper's policy | forebay | bound \
         |\n\
         |---|---|---|---|---|---|---|\n",
    );
    let mut decisions = String::new();
    let mut speeds = Vec::new();
    for (setup, (size, published, published_lru)) in scenario.setups.iter().zip(FIGURE_6) {
        assert_eq!(setup.variant.as_deref(), Some(size), "the variants match the figure");
        let none = run(&scenario, setup, Policy::None);
        let [lru, quiver, ours] = [Policy::Lru, Policy::Quiver, Policy::Forebay]
            .map(|policy| run(&scenario, setup, policy));
        let speed = |outcome: &Outcome| outcome.speed_up(&none).expect("all jobs compute");
        let bound = bounds::speed_up(setup, &none).expect("all jobs compute");
        let [lru_speed, quiver_speed, our_speed] = [&lru, &quiver, &ours].map(speed);
        let _ = writeln!(
            section.text,
            "| {size} | {published_lru} | {lru_speed:.2} | {published} | {quiver_speed:.2} | \
             {our_speed:.2} | {bound:.2} |",
        );
        speeds.push([lru_speed, quiver_speed, our_speed, bound]);
        for outcome in [&quiver, &ours] {
            let _ = writeln!(decisions, "- {size}, {}:\n{}", outcome.policy, shares(outcome));
        }
    }
    let [[_, quiver_100, ..], _, [lru_700, quiver_700, ours_700, bound_700]] = speeds[..] else {
        unreachable!("three sizes")
    };
    let _ = write!(
        section.text,
        "\nShares of the datasets, with the reasons that the policy gives (of identical jobs, the \
         first):\n\n{decisions}\n\
         - **100 GB.** Quiver's policy reaches {quiver_100:.2} here; about 1.6 is published. It is \
         faster here than published in table 3, too, for the same reason: the mean of that table's \
         published gains is 1.74 with seven jobs per fetch, and here there are four.\n\
         - **200 GB.** Published: all of ImageNet, and two chunks of 15 GB of each of the others, \
         which is 154 + 4 × 15 = 214 GB. Even with LibriSpeech in chunks of a tenth it would be \
         202 GB. By the printed rule all of ImageNet does not fit beside the chunks that come \
         first, so LibriSpeech is pinned whole here.\n\
         - **700 GB.** Published: ImageNet and OpenImages are cached whole. Here ImageNet and \
         LibriSpeech are. By the printed ratio of benefit to cost LibriSpeech comes before \
         OpenImages, which then does not fit.\n\
         - **LRU at 700 GB** reaches {lru_700:.2} here; 2.2 is published, and the bound is \
         {bound_700:.2}. It is {} than forebay ({ours_700:.2}) and Quiver ({quiver_700:.2}) there: \
         the tenth of reads that misses is hidden by computation, and LRU neither probes nor \
         rotates. forebay reads up to 1 % of an epoch past the cache to measure the benefit of its \
         jobs.\n\n",
        if lru_700 > ours_700 && lru_700 > quiver_700 { "faster" } else { "no faster" },
    );
}

/// Share and reason of each dataset, as a list. Of identical jobs only the first is shown.
fn shares(outcome: &Outcome) -> String {
    let mut list = String::new();
    for dataset in &outcome.datasets {
        let Some(decision) = outcome.decision(&dataset.name) else { continue };
        let text = decision.text.split(", job ").next().unwrap_or_default();
        let _ = writeln!(list, "  - {}: {text}", dataset.name);
    }
    list.trim_end().to_owned()
}

fn figure_7(run: &mut Run<'_>, section: &mut Section) {
    let more = "run quiver-figure7 --plot rotation.svg`, and with `--policy forebay";
    let title = "Figure 7: rotation, with three more jobs after 15 minutes";
    let scenario = begin(section, "figure-7", [title, "quiver-figure7", more]);
    section.text.push_str(
        "Published: at most two of the ten chunks are cached at once; all jobs together compute \
         more mini-batches when three jobs join the four; the new jobs begin with the cached \
         chunks.\n\n\
         | | chunks at once, at most | mini-batches/s before | after | chunks loaded | origin \
         bytes |\n\
         |---|---|---|---|---|---|\n",
    );
    let mut per_job = Vec::new();
    for (policy, file) in [(Policy::Quiver, "figure-7.svg"), (Policy::Forebay, "figure-7-ours.svg")]
    {
        let outcome = run(&scenario, &scenario.setups[0], policy);
        let rate = |from: f64, to: f64| {
            let step = outcome.progress.step_seconds;
            let steps = outcome.progress.batches.iter().enumerate();
            let within = steps.filter(|(at, _)| (from..to).contains(&(*at as f64 * step)));
            within.map(|(_, batches)| batches).sum::<u64>() as f64 / (to - from)
        };
        let (before, after) = (rate(300.0, 900.0), rate(1200.0, 1800.0));
        let batches = outcome.jobs.iter().map(|job| job.batches).sum::<u64>().max(1);
        per_job.push((before / 4.0, after / 7.0, outcome.origin_bytes / batches));
        let _ = writeln!(
            section.text,
            "| {} | {} | {before:.1} | {after:.1} | {} | {} |",
            match policy {
                Policy::Quiver => "the paper's policy",
                _ => "forebay",
            },
            chunks_at_once(&outcome),
            outcome.residency.len(),
            ByteSize(outcome.origin_bytes),
        );
        section.pictures.push((file, plot::over_time(&outcome)));
    }
    let [theirs, ours] = per_job[..] else { unreachable!("two policies") };
    let (theirs_before, theirs_after, their_bytes) = theirs;
    let (ours_before, ours_after, ours_bytes) = ours;
    let _ = write!(
        section.text,
        "\nPer job: {theirs_before:.2} mini-batches per second before and {theirs_after:.2} after, \
         under the paper's policy. This is the published effect: with more jobs to share fetches, \
         the first jobs become faster as well. Under forebay it is {ours_before:.2} and \
         {ours_after:.2}: the GPUs were the limit (10.84) before, and nothing is left to gain. \
         forebay reads more from the origin in the same time because it computes more: {} per \
         mini-batch, against {} under the paper's policy.\n\n\
         ![chunks under the paper's policy](reproductions/figure-7.svg)\n\
         ![chunks under forebay](reproductions/figure-7-ours.svg)\n\n",
        ByteSize(ours_bytes),
        ByteSize(their_bytes),
    );
}

/// Most chunks that were resident at the same time.
pub(super) fn chunks_at_once(outcome: &Outcome) -> usize {
    let at = |time: f64| {
        let stays = outcome.residency.iter();
        stays.filter(|stay| stay.from_seconds <= time && time < stay.to_seconds).count()
    };
    outcome.residency.iter().map(|stay| at(stay.from_seconds)).max().unwrap_or(0)
}
