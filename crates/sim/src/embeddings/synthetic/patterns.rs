//! The patterns, a few lines each. Lengths are in requests, so that a shorter trace is the beginning of a longer one.

use super::{Draw, Made, scatter};

/// Keys that belong to other times or places than `value` begin here.
const ELSEWHERE: u64 = 1 << 32;

const fn made(
    name: &'static str,
    about: &'static str,
    tables: usize,
    request: fn(&mut Draw<'_>),
) -> Made {
    Made { name, about, tables, request }
}

/// Pairs of one kind each: the first is for tuning, the second held out.
pub(super) const ALL: &[Made] = &[
    made("zipf", "four tables, Zipf", 4, zipf),
    made("zipf-uneven", "eight tables, large and small, steep and flat", 8, zipf_uneven),
    made("scans", "Zipf with scans that come round", 3, scans),
    made("bag-scans", "Zipf with scans of bags", 3, bag_scans),
    made("loop-in-turn", "a loop and Zipf in turn", 3, loop_in_turn),
    made("two-loops-in-turn", "loops in two tables and Zipf in turn", 3, two_loops_in_turn),
    made("three-loops-in-turn", "three loops and Zipf in turn", 2, three_loops_in_turn),
    made("loop-tables", "a loop in each of three tables", 3, loop_tables),
    made("loops-beside", "two loops beside Zipf", 4, loops_beside),
    made("three-loops-beside", "three loops beside Zipf", 4, three_loops_beside),
    made("epochs", "epochs, each shuffled, beside Zipf", 3, epochs),
    made("mixed", "tables that behave differently", 5, mixed),
    made("sessions", "sessions of users with profiles", 4, sessions),
    made("short-sessions", "shorter sessions, more at a time", 4, short_sessions),
    made("shift-all", "favourites shift, four tables at once", 4, shift_all),
    made("shift-half", "half of the favourites shift", 4, shift_half),
    made("shift-in-turn", "favourites shift, one of four tables at a time", 4, shift_in_turn),
    made("shift-few", "26 tables, four of them shift", 26, shift_few),
    made("drift", "favourites drift", 4, drift),
    made("drift-wide", "26 tables, drifting", 26, drift_wide),
    made("drifting-bags", "bags, drifting", 2, drifting_bags),
    made("random-walk", "a random walk", 3, random_walk),
    made("companions-shift", "companions, shifting", 6, companions_shift),
    made("companions-drift", "companions, drifting", 8, companions_drift),
    made("new-items", "new items all the time", 3, new_items),
    made("fashions", "short fashions", 3, fashions),
    made("day-and-night", "others by day than by night", 3, day_and_night),
    made("recency", "recency alone", 1, recency),
    made("passers-by", "companions, and others who never return", 5, passers_by),
    made("sessions-wide", "sessions, twelve tables", 12, sessions_wide),
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
    let place = draw.looped(8000);
    for table in 0..3 {
        let key = if place < 2000 { ELSEWHERE + place } else { draw.zipf(2000, 0.9) };
        draw.key(table, key);
    }
}

fn bag_scans(draw: &mut Draw<'_>) {
    let place = draw.looped(6000);
    for table in 0..2 {
        let key = draw.zipf(1500, 0.9);
        draw.key(table, key);
    }
    for at in 0..4 {
        let key = if place < 1000 { ELSEWHERE + 4 * place + at } else { draw.zipf(1500, 1.1) };
        draw.key(2, key);
    }
}

fn loop_in_turn(draw: &mut Draw<'_>) {
    for table in 0..3 {
        let looping = draw.phase(6000) % 2 == 1;
        let key = if looping { ELSEWHERE + draw.looped(1500) } else { draw.zipf(2000, 0.9) };
        draw.key(table, key);
    }
}

fn two_loops_in_turn(draw: &mut Draw<'_>) {
    for table in 0..3 {
        let key = match draw.phase(5000) % 3 {
            1 if table < 2 => ELSEWHERE + draw.looped(900),
            2 if table > 0 => 2 * ELSEWHERE + draw.looped(2000),
            _ => draw.zipf(1500, 0.9),
        };
        draw.key(table, key);
    }
}

fn three_loops_in_turn(draw: &mut Draw<'_>) {
    for table in 0..2 {
        let kind = draw.phase(4000) % 4;
        let looped = |length: u64| kind * ELSEWHERE + draw.looped(length);
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
    let place = draw.looped(3000);
    if place == 0 {
        draw.random.shuffle(&mut draw.state);
    }
    draw.key(0, draw.state[place as usize]);
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
    draw.key(4, ELSEWHERE + draw.at / 10 - ranks[3]);
}

/// So many users are there at a time, and each stays for so many requests.
fn session(draw: &mut Draw<'_>, users_now: usize, requests: f64) -> u64 {
    let place = draw.random.usize(..users_now);
    while draw.state.len() < users_now || draw.chance(1.0 / requests) {
        let user = draw.zipf(4000, 0.6);
        if draw.state.len() < users_now {
            draw.state.push(user);
        } else {
            draw.state[place] = user;
            break;
        }
    }
    draw.state[place]
}

/// A user, what is known of them, and one of the things that they like.
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
        draw.state = vec![ELSEWHERE; 3];
    }
    for table in 0..3 {
        let place = draw.state[table] + draw.random.u64(..=6) - 3;
        draw.state[table] = place;
        let near = draw.zipf(400, 0.7);
        draw.key(table, place + near);
    }
}

fn companions_shift(draw: &mut Draw<'_>) {
    let item = draw.zipf(1000, 0.9);
    let item = scatter(item, draw.phase(7000));
    for table in 0..5 {
        draw.key(table, scatter(item, table as u64) % (ELSEWHERE >> (5 * table)));
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
    let item = ELSEWHERE + draw.at / 5 - age;
    draw.key(0, item);
    draw.key(1, scatter(item, 0) % 200);
    let user = draw.zipf(1000, 1.1);
    draw.key(2, user);
}

fn fashions(draw: &mut Draw<'_>) {
    if draw.state.is_empty() {
        draw.state.extend(0..20);
    }
    let place = draw.random.usize(..20);
    if draw.chance(1.0 / 60.0) {
        draw.state[place] = 20 + draw.at;
    }
    let topic = draw.state[place];
    for table in 0..3 {
        let rank = draw.zipf(30, 0.8);
        draw.key(table, scatter(rank, topic));
    }
}

fn day_and_night(draw: &mut Draw<'_>) {
    let night = draw.phase(5000) % 2;
    for table in 0..3 {
        let rank = draw.zipf(2000, 0.9);
        draw.key(table, night * ELSEWHERE + rank);
    }
}

/// What was asked for last is on top of the stack.
fn recency(draw: &mut Draw<'_>) {
    let depth = draw.zipf(6000, 0.8) as usize;
    let key = if depth < draw.state.len() {
        let place = draw.state.len() - 1 - depth;
        draw.state.remove(place)
    } else {
        draw.at
    };
    draw.state.push(key);
    draw.key(0, key);
}

fn passers_by(draw: &mut Draw<'_>) {
    let passes = draw.chance(0.3);
    let item = if passes { ELSEWHERE + draw.at } else { draw.zipf(1500, 0.9) };
    for table in 0..4 {
        draw.key(table, scatter(item, table as u64));
    }
    let rank = draw.zipf(300, 1.1);
    draw.key(4, rank);
}
