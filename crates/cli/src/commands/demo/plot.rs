//! The plot: progress of the jobs, as in figure 3 of Quiver, and cached chunks, as in its figure 7.

use forebay_sim::{
    svg::{Anchor, GAP, LEFT, PANEL, Panel, RIGHT, Svg, TOP, WIDTH},
    train::plot::draw_stay,
};

use super::{
    job_kinds::KINDS,
    run::{Experiment, Phase},
};

/// One colour per kind of job, safe for colour-blind readers.
const COLOURS: [&str; KINDS.len()] = ["#d55e00", "#0072b2", "#009e73"];
const GREY: &str = "#555555";
/// Rows that have a label.
const LABELLED_ROWS: u32 = 20;
/// Shades for the share of a chunk that is resident.
const SHADES: f64 = 10.0;

pub fn draw(experiment: &Experiment, direct: &Phase, cached: &Phase) -> String {
    let title = format!(
        "{} jobs, {} epochs each; a cache of {} of {} chunks",
        experiment.jobs,
        experiment.epochs,
        experiment.cache.chunks,
        experiment.cache.dataset_chunks
    );
    let mut svg = Svg::new(WIDTH, TOP + 2.0 * (PANEL + GAP) + 40.0, &title);
    // Both panels have the same time axis.
    let x_max = direct.seconds.max(cached.seconds).max(1e-3);
    let panel = Panel { top: TOP + 30.0, x_max, y_max: experiment.epochs as f64 };
    progress(&mut svg, &panel, experiment, [direct, cached]);
    let top = panel.top + PANEL + GAP + 10.0;
    residency(&mut svg, top, x_max, cached);
    svg.finish()
}

/// Epochs over time, one line per job.
fn progress(svg: &mut Svg, panel: &Panel, experiment: &Experiment, phases: [&Phase; 2]) {
    panel.axes(svg, "epochs read by each job, over time", "seconds since all jobs started", 0.0);
    let items = experiment.digest.summary().items.max(1) as f64;
    for (phase, is_dashed) in phases.into_iter().zip([true, false]) {
        for job in &phase.jobs {
            let colour = KINDS.iter().position(|kind| *kind == job.kind).unwrap_or(0);
            let points = job.timeline.iter();
            let points =
                points.map(|(seconds, read)| (panel.x(*seconds), panel.y(*read as f64 / items)));
            if is_dashed {
                svg.dashed_curve(points, COLOURS[colour]);
            } else {
                svg.curve(points, COLOURS[colour]);
            }
        }
    }
    let y = panel.top - 32.0;
    let kinds = KINDS.iter().zip(COLOURS).map(|(kind, colour)| (kind.name, colour));
    let (end, y) = svg.legend((LEFT, y), kinds);
    let lines = end + 20.0;
    svg.dashed((lines, y - 5.0), (lines + 30.0, y - 5.0), GREY);
    svg.label((lines + 36.0, y), Anchor::Start, "directly from the origin");
    svg.line((lines + 200.0, y - 5.0), (lines + 230.0, y - 5.0), GREY);
    svg.label((lines + 236.0, y), Anchor::Start, "through forebay");
}

/// One row per chunk, darker where more of it is resident.
fn residency(svg: &mut Svg, top: f64, x_max: f64, cached: &Phase) {
    let Some(residency) = &cached.residency else { return };
    let panel = Panel { top, x_max, y_max: f64::from(residency.chunks) };
    let title = "chunks in the cache, through forebay; darker where more of a chunk is resident";
    panel.frame(svg, title, "seconds since all jobs started");
    let step = residency.chunks.div_ceil(LABELLED_ROWS).max(1);
    for chunk in 0..residency.chunks {
        let y = panel.y(f64::from(chunk) + 0.5);
        if chunk % step == 0 {
            svg.label((LEFT - 8.0, y + 4.0), Anchor::End, &format!("chunk {chunk}"));
        }
        for (from, to, share) in residency.spans(chunk, SHADES) {
            draw_stay(svg, &panel, chunk, (from, to), share);
        }
    }
    for job in &cached.jobs {
        let x = panel.x(job.seconds);
        svg.dashed((x, panel.top), (x, panel.top + PANEL), GREY);
    }
    let right = WIDTH - RIGHT;
    svg.coloured_label((right, top - 10.0), Anchor::End, GREY, "dashed lines: a job has ended");
}
