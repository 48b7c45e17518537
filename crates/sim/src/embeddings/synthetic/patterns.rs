//! Access patterns of synthetic traces.
//!
//! Lengths are in requests, so that a shorter trace is a prefix of a longer one.

use super::{Draw, Made, scatter};

/// Offset of keys that must differ from the Zipf ranks.
const DISJOINT: u64 = 1 << 32;

const fn pattern(
    name: &'static str,
    about: &'static str,
    tables: usize,
    request: fn(&mut Draw<'_>),
) -> Made {
    Made { name, about, tables, request }
}

/// Pairs of one kind: the first for tuning, the second held out.
pub(super) const ALL: &[Made] = &[
    pattern("zipf", "four tables, Zipf", 4, zipf),
    pattern("zipf-uneven", "eight tables, large and small, steep and flat", 8, zipf_uneven),
    pattern("scans", "Zipf with repeated scans", 3, scans),
    pattern("bag-scans", "Zipf with scans of bags", 3, bag_scans),
    pattern("loop-in-turn", "a loop and Zipf in turn", 3, loop_in_turn),
    pattern("two-loops-in-turn", "loops in two tables and Zipf in turn", 3, two_loops_in_turn),
    pattern("three-loops-in-turn", "three loops and Zipf in turn", 2, three_loops_in_turn),
    pattern("loop-tables", "a loop in each of three tables", 3, loop_tables),
    pattern("loops-beside", "two loops beside Zipf", 4, loops_beside),
    pattern("three-loops-beside", "three loops beside Zipf", 4, three_loops_beside),
    pattern("epochs", "epochs, each shuffled, beside Zipf", 3, epochs),
    pattern("mixed", "tables that behave differently", 5, mixed),
    pattern("sessions", "sessions of users with profiles", 4, sessions),
    pattern("short-sessions", "shorter sessions, more at a time", 4, short_sessions),
    pattern("shift-all", "popular keys shift, four tables at once", 4, shift_all),
    pattern("shift-half", "half of the popular keys shift", 4, shift_half),
    pattern("shift-in-turn", "popular keys shift, one of four tables at a time", 4, shift_in_turn),
    pattern("shift-few", "26 tables, four of them shift", 26, shift_few),
    pattern("drift", "popular keys drift", 4, drift),
    pattern("drift-wide", "26 tables, drifting", 26, drift_wide),
    pattern("drifting-bags", "bags, drifting", 2, drifting_bags),
    pattern("random-walk", "a random walk", 3, random_walk),
    pattern("companions-shift", "companions, shifting", 6, companions_shift),
    pattern("companions-drift", "companions, drifting", 8, companions_drift),
    pattern("new-items", "new items all the time", 3, new_items),
    pattern("fashions", "short-lived topics", 3, fashions),
    pattern("day-and-night", "different keys by day and by night", 3, day_and_night),
    pattern("recency", "recency alone", 1, recency),
    pattern("passers-by", "companions, and keys that never return", 5, passers_by),
    pattern("sessions-wide", "sessions, twelve tables", 12, sessions_wide),
];

fn zipf(draw: &mut Draw<'_>) {
    for table in 0..4 {
        let rank = draw.zipf(3000, 0.9);
        draw.key(table, rank);
    }
}

fn zipf_uneven(draw: &mut Draw<'_>) {
    for (table, steepness) in [0.7, 1.3, 0.8, 1.2, 0.9, 1.1, 0.95, 1.05].into_iter().enumerate() {
        let rank = draw.zipf(50 << table, steepness);
        draw.key(table, rank);
    }
}

fn scans(draw: &mut Draw<'_>) {
    let position = draw.looped(8000);
    for table in 0..3 {
        let key = if position < 2000 { DISJOINT + position } else { draw.zipf(2000, 0.9) };
        draw.key(table, key);
    }
}

fn bag_scans(draw: &mut Draw<'_>) {
    let position = draw.looped(6000);
    for table in 0..2 {
        let key = draw.zipf(1500, 0.9);
        draw.key(table, key);
    }
    for at in 0..4 {
        let key = if position < 1000 { DISJOINT + 4 * position + at } else { draw.zipf(1500, 1.1) };
        draw.key(2, key);
    }
}

fn loop_in_turn(draw: &mut Draw<'_>) {
    for table in 0..3 {
        let looping = draw.phase(6000) % 2 == 1;
        let key = if looping { DISJOINT + draw.looped(1500) } else { draw.zipf(2000, 0.9) };
        draw.key(table, key);
    }
}

fn two_loops_in_turn(draw: &mut Draw<'_>) {
    for table in 0..3 {
        let key = match draw.phase(5000) % 3 {
            1 if table < 2 => DISJOINT + draw.looped(900),
            2 if table > 0 => 2 * DISJOINT + draw.looped(2000),
            _ => draw.zipf(1500, 0.9),
        };
        draw.key(table, key);
    }
}

fn three_loops_in_turn(draw: &mut Draw<'_>) {
    for table in 0..2 {
        let kind = draw.phase(4000) % 4;
        let looped = |length: u64| kind * DISJOINT + draw.looped(length);
        let key = match kind {
            1 => looped(600),
            2 => looped(1200),
            3 => looped(2400),
            _ => draw.zipf(2000, 0.9),
        };
        draw.key(table, key);
    }
}

fn loop_tables(draw: &mut Draw<'_>) {
    for (table, length) in [1000, 1400, 1900].into_iter().enumerate() {
        draw.key(table, draw.looped(length));
    }
}

fn loops_beside(draw: &mut Draw<'_>) {
    for (table, length) in [700, 1100].into_iter().enumerate() {
        draw.key(table, draw.looped(length));
    }
    for table in 2..4 {
        let rank = draw.zipf(2000, 0.9);
        draw.key(table, rank);
    }
}

fn three_loops_beside(draw: &mut Draw<'_>) {
    for (table, length) in [300, 800, 1300].into_iter().enumerate() {
        draw.key(table, draw.looped(length));
    }
    let rank = draw.zipf(3000, 0.9);
    draw.key(3, rank);
}

fn epochs(draw: &mut Draw<'_>) {
    if draw.state.is_empty() {
        draw.state.extend(0..3000);
    }
    let position = draw.looped(3000);
    if position == 0 {
        draw.random.shuffle(&mut draw.state);
    }
    draw.key(0, draw.state[position as usize]);
    for table in 1..3 {
        let rank = draw.zipf(1500, 1.1);
        draw.key(table, rank);
    }
}

fn mixed(draw: &mut Draw<'_>) {
    draw.key(0, draw.looped(400));
    let ranks = [(); 4].map(|()| draw.zipf(1000, 1.1));
    draw.key(1, ranks[0]);
    draw.key(2, draw.drifted(ranks[1], 15_000));
    draw.key(3, scatter(ranks[2], draw.phase(8000)));
    draw.key(4, DISJOINT + draw.at / 10 - ranks[3]);
}

/// A random user of `users_now` concurrent sessions, each of `requests` requests on average.
fn session(draw: &mut Draw<'_>, users_now: usize, requests: f64) -> u64 {
    let session = draw.random.usize(..users_now);
    while draw.state.len() < users_now || draw.chance(1.0 / requests) {
        let user = draw.zipf(4000, 0.6);
        if draw.state.len() < users_now {
            draw.state.push(user);
        } else {
            draw.state[session] = user;
            break;
        }
    }
    draw.state[session]
}

/// A user, two attributes that the user determines, and an item.
fn user_and_item(draw: &mut Draw<'_>, user: u64) {
    draw.key(0, user);
    draw.key(1, scatter(user, 1) % 300);
    draw.key(2, scatter(user, 2) % 50);
    let liked = draw.zipf(30, 0.9);
    let key = if draw.chance(0.5) { scatter(liked, user + 3) % 2000 } else { draw.zipf(2000, 1.1) };
    draw.key(3, key);
}

fn sessions(draw: &mut Draw<'_>) {
    let user = session(draw, 20, 20.0);
    user_and_item(draw, user);
}

fn short_sessions(draw: &mut Draw<'_>) {
    let user = session(draw, 50, 5.0);
    user_and_item(draw, user);
}

fn sessions_wide(draw: &mut Draw<'_>) {
    let user = session(draw, 30, 12.0);
    for table in 0..9 {
        draw.key(table, scatter(user, table as u64) % (4000 >> table));
    }
    for table in 9..12 {
        let rank = draw.zipf(500, 1.2);
        draw.key(table, rank);
    }
}

fn shift_all(draw: &mut Draw<'_>) {
    for table in 0..4 {
        let rank = draw.zipf(1500, 1.1);
        draw.key(table, scatter(rank, draw.phase(8000)));
    }
}

fn shift_half(draw: &mut Draw<'_>) {
    for table in 0..4 {
        let rank = draw.zipf(1500, 1.1);
        let shifts = rank.is_multiple_of(2);
        draw.key(table, scatter(rank, if shifts { 1 + draw.phase(6000) } else { 0 }));
    }
}

fn shift_in_turn(draw: &mut Draw<'_>) {
    for table in 0..4 {
        let rank = draw.zipf(1500, 1.1);
        draw.key(table, scatter(rank, (draw.phase(3000) + table as u64) / 4));
    }
}

fn shift_few(draw: &mut Draw<'_>) {
    for table in 0..26 {
        let rank = draw.zipf(20 << (table % 7), 1.3);
        let shifts = if table % 7 == 5 { draw.phase(3000) } else { 0 };
        draw.key(table, scatter(rank, shifts));
    }
}

fn drift(draw: &mut Draw<'_>) {
    for table in 0..4 {
        let rank = draw.zipf(1500, 1.1);
        draw.key(table, draw.drifted(rank, 12_000));
    }
}

fn drift_wide(draw: &mut Draw<'_>) {
    for table in 0..26 {
        let rank = draw.zipf(20 << (table % 7), 1.4);
        draw.key(table, draw.drifted(rank, 4000));
    }
}

fn drifting_bags(draw: &mut Draw<'_>) {
    let user = draw.zipf(1000, 0.9);
    draw.key(0, draw.drifted(user, 8000));
    for _ in 0..draw.random.usize(1..=8) {
        let rank = draw.zipf(3000, 1.1);
        draw.key(1, draw.drifted(rank, 8000));
    }
}

fn random_walk(draw: &mut Draw<'_>) {
    if draw.state.is_empty() {
        draw.state = vec![DISJOINT; 3];
    }
    for table in 0..3 {
        let position = draw.state[table] + draw.random.u64(..=6) - 3;
        draw.state[table] = position;
        let near = draw.zipf(400, 0.7);
        draw.key(table, position + near);
    }
}

fn companions_shift(draw: &mut Draw<'_>) {
    let item = draw.zipf(1000, 0.9);
    let item = scatter(item, draw.phase(7000));
    for table in 0..5 {
        draw.key(table, scatter(item, table as u64) % (DISJOINT >> (5 * table)));
    }
    let rank = draw.zipf(200, 1.1);
    draw.key(5, rank);
}

fn companions_drift(draw: &mut Draw<'_>) {
    let item = draw.zipf(1500, 1.1);
    let item = draw.drifted(item, 10_000);
    for table in 0..6 {
        draw.key(table, scatter(item, table as u64) % (4000 >> table));
    }
    for table in 6..8 {
        let rank = draw.zipf(300, 1.1);
        draw.key(table, rank);
    }
}

fn new_items(draw: &mut Draw<'_>) {
    let age = draw.zipf(3000, 0.9);
    let item = DISJOINT + draw.at / 5 - age;
    draw.key(0, item);
    draw.key(1, scatter(item, 0) % 200);
    let user = draw.zipf(1000, 1.1);
    draw.key(2, user);
}

fn fashions(draw: &mut Draw<'_>) {
    if draw.state.is_empty() {
        draw.state.extend(0..20);
    }
    let slot = draw.random.usize(..20);
    if draw.chance(1.0 / 60.0) {
        draw.state[slot] = 20 + draw.at;
    }
    let topic = draw.state[slot];
    for table in 0..3 {
        let rank = draw.zipf(30, 0.8);
        draw.key(table, scatter(rank, topic));
    }
}

fn day_and_night(draw: &mut Draw<'_>) {
    let night = draw.phase(5000) % 2;
    for table in 0..3 {
        let rank = draw.zipf(2000, 0.9);
        draw.key(table, night * DISJOINT + rank);
    }
}

/// Stack-distance model: the last requested key is on top.
fn recency(draw: &mut Draw<'_>) {
    let depth = draw.zipf(6000, 0.8) as usize;
    let key = if depth < draw.state.len() {
        let position = draw.state.len() - 1 - depth;
        draw.state.remove(position)
    } else {
        draw.at
    };
    draw.state.push(key);
    draw.key(0, key);
}

fn passers_by(draw: &mut Draw<'_>) {
    let passes = draw.chance(0.3);
    let item = if passes { DISJOINT + draw.at } else { draw.zipf(1500, 0.9) };
    for table in 0..4 {
        draw.key(table, scatter(item, table as u64));
    }
    let rank = draw.zipf(300, 1.1);
    draw.key(4, rank);
}
