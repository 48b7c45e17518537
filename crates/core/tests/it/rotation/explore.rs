use super::world::*;
use forebay_core::rotation::Policy;
use std::time::Duration;

/// (origin items per turn of the fastest)/(unheld), mean and max over seeds
fn cost(
    policy: Policy,
    n: u32,
    b: u32,
    paces: &[f64],
    load: f64,
    stagger: bool,
    seed: u64,
) -> (f64, f64) {
    let m = 48;
    let fastest = paces.iter().copied().fold(0.0, f64::max);
    let d = f64::from(m) / fastest; // seconds a chunk
    let mut rng = fastrand::Rng::with_seed(seed ^ 77);
    let turns = 8;
    let jobs = paces
        .iter()
        .map(|p| JobPlan {
            arrives: 1 + if stagger { rng.u64(0..(d * f64::from(n)) as u64) } else { 0 },
            paces: vec![(0, *p)],
            epochs: if *p == fastest { turns } else { 1000 },
            dies: None,
        })
        .collect();
    let fast = paces.iter().position(|p| *p == fastest).unwrap();
    let plan = Plan {
        policy,
        chunks: n,
        chunk_items: m,
        budget: b,
        origin: f64::from(m) / (d * load),
        report_every: 2,
        jobs,
    };
    let mut w = World::new(plan, seed);
    while w.turns(fast).len() < turns as usize {
        w.step();
    }
    let t = w.turns(fast);
    let unheld = match policy {
        Policy::ByNeed => n - (b - 2),
        _ => n,
    };
    let per = (t[7] - t[2]) as f64 / 5.0 / f64::from(unheld * m);
    let out = (w.outside) as f64 / 8.0 / f64::from(unheld * m);
    (per, out)
}

#[test]
fn table() {
    let paper = Policy::Paper { deadline: Duration::from_secs(20) };
    let sets: Vec<(&str, Vec<f64>)> = vec![
        ("4 equal", vec![4.0; 4]),
        ("1.4x", vec![4.0, 4.0 / 1.4]),
        ("4x", vec![4.0, 1.0]),
        ("4 spread", vec![4.0, 2.9, 1.7, 1.0]),
        ("7 spread", vec![4.0, 3.5, 2.9, 2.3, 1.7, 1.3, 1.0]),
    ];
    for (n, b) in [(10, 2), (10, 5), (30, 10)] {
        for load in [0.3, 0.8] {
            for (name, paces) in &sets {
                let _ = paper;
                let mut line = format!("n={n} b={b} load={load} {name:9}");
                for policy in [Policy::ByNeed] {
                    let k = 5;
                    let rs: Vec<_> =
                        (0..k).map(|s| cost(policy, n, b, paces, load, true, s)).collect();
                    let mean = rs.iter().map(|r| r.0).sum::<f64>() / k as f64;
                    let max = rs.iter().map(|r| r.0).fold(0.0, f64::max);
                    let out = rs.iter().map(|r| r.1).sum::<f64>() / k as f64;
                    line += &format!("  {mean:.3} max {max:.3} (outside {out:.3})");
                }
                println!("{line}");
            }
        }
    }
}
