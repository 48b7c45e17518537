//! The picture: how far every job was, as in Quiver's figure 3, and which chunks were in the cache, as in its
//! figure 7; both as it really happened.

use forebay_sim::{
    svg::{Anchor, GAP, LEFT, PANEL, Panel, RIGHT, Svg, TOP, WIDTH},
    train::plot::draw_stay,
};

use super::{
    kinds::KINDS,
    phase::{Phase, Stage},
};

/// One for each kind; also told apart by those who see no red or green.
const COLOURS: [&str; KINDS.len()] = ["#d55e00", "#0072b2", "#009e73"];
const GREY: &str = "#555555";
/// So many rows have room for their names.
const ROWS_NAMED: u32 = 20;
/// Shares of a chunk that are told apart.
const SHADES: f64 = 10.0;

pub fn draw(stage: &Stage, straight: &Phase, through: &Phase) -> String {
    let title = format!(
        "{} jobs, {} epochs each; a cache with room for {} of {} chunks",
        stage.jobs, stage.epochs, stage.cache.chunks, stage.cache.of
    );
    let mut svg = Svg::new(WIDTH, TOP + 2.0 * (PANEL + GAP) + 40.0, &title);
    // Both panels have the same seconds, one above the other.
    let x_max = straight.seconds.max(through.seconds).max(1e-3);
    let panel = Panel { top: TOP + 30.0, x_max, y_max: stage.epochs as f64 };
    progress(&mut svg, &panel, stage, [straight, through]);
    let top = panel.top + PANEL + GAP + 10.0;
    residency(&mut svg, top, x_max, through);
    svg.finish()
}

/// Epochs over time, a line for each job.
fn progress(svg: &mut Svg, panel: &Panel, stage: &Stage, phases: [&Phase; 2]) {
    panel.axes(
        svg,
        "epochs that each job has read, over time",
        "seconds since all jobs started",
        0.0,
    );
    let items = stage.digest.summary().items.max(1) as f64;
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
    svg.legend((LEFT, y), 120.0, kinds);
    let lines = LEFT + 120.0 * KINDS.len() as f64 + 20.0;
    svg.dashed((lines, y - 5.0), (lines + 30.0, y - 5.0), GREY);
    svg.label((lines + 36.0, y), Anchor::Start, "straight from the origin");
    svg.line((lines + 200.0, y - 5.0), (lines + 230.0, y - 5.0), GREY);
    svg.label((lines + 236.0, y), Anchor::Start, "through forebay");
}

/// A row for each chunk: the more of it is there, the darker.
fn residency(svg: &mut Svg, top: f64, x_max: f64, through: &Phase) {
    let Some(residency) = &through.residency else { return };
    let panel = Panel { top, x_max, y_max: f64::from(residency.chunks) };
    let title = "chunks in the cache, through forebay; the darker, the more of a chunk is there";
    panel.frame(svg, title, "seconds since all jobs started");
    let step = residency.chunks.div_ceil(ROWS_NAMED).max(1);
    for chunk in 0..residency.chunks {
        let y = panel.y(f64::from(chunk) + 0.5);
        if chunk % step == 0 {
            svg.label((LEFT - 8.0, y + 4.0), Anchor::End, &format!("chunk {chunk}"));
        }
        for (from, to, share) in residency.spans(chunk, SHADES) {
            draw_stay(svg, &panel, chunk, (from, to), share);
        }
    }
    for job in &through.jobs {
        let x = panel.x(job.seconds);
        svg.dashed((x, panel.top), (x, panel.top + PANEL), GREY);
    }
    let right = WIDTH - RIGHT;
    svg.coloured_label((right, top - 10.0), Anchor::End, GREY, "broken lines: a job has ended");
}
