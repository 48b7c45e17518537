//! Whole simulations that are small enough for the result to be known.

use super::*;

/// A scenario of one job on a dataset of 10 kB items, with additional lines.
fn one_job(origin: &str, cache: &str, job: &str) -> String {
    format!(
        "about = \"a test\"\n[origin]\n{origin}\n[cache]\nread_bandwidth = \"1GB/s\"\n{cache}\n\
         [[dataset]]\nname = \"photos\"\nsize = \"100MB\"\nitems = 10_000\n\
         [[job]]\nname = \"trainer\"\ndataset = \"photos\"\n{job}\n"
    )
}

fn run(text: &str, policy: Policy, seed: u64) -> Outcome {
    let scenario =
        Scenario::parse(text, "test.toml", "test").unwrap_or_else(|error| panic!("{error}"));
    simulate(&scenario, &scenario.setups[0], policy, seed, &mut |_| {})
}

fn batch_ms(outcome: &Outcome) -> f64 {
    outcome.jobs[0].batch_seconds.expect("a mini-batch was computed") * 1e3
}

fn close(value: f64, expected: f64, share: f64) {
    assert!((value / expected - 1.0).abs() <= share, "{value} is not {expected}");
}

/// 100 mini-batches of 1 MB.
#[test]
fn a_mini_batch_takes_as_long_as_its_slowest_stage() {
    let fast = "bandwidth = \"1GB/s\"";
    let slow = "bandwidth = \"20MB/s\"";
    for (origin, job, policy, expected) in [
        // 1 ms to read, 30 ms to compute.
        (fast, "compute = \"30ms\"", Policy::None, 30.0),
        (fast, "compute = \"30ms\"", Policy::Hit, 30.0),
        // 50 ms to read.
        (slow, "compute = \"30ms\"", Policy::None, 50.0),
        (slow, "compute = \"30ms\"", Policy::Hit, 30.0),
        // 240 ms to transform, by eight workers or by four.
        (fast, "compute = \"20ms\"\ntransform = \"240ms\"\nworkers = 8", Policy::Hit, 30.1),
        (fast, "compute = \"20ms\"\ntransform = \"240ms\"\nworkers = 4", Policy::Hit, 60.2),
        // No prefetching: the sum.
        (slow, "compute = \"30ms\"\ntransform = \"20ms\"\ndepth = 1", Policy::None, 100.0),
        (fast, "compute = \"30ms\"\ntransform = \"20ms\"\ndepth = 1", Policy::Hit, 51.0),
    ] {
        let text =
            one_job(origin, "capacity = \"100%\"", &format!("batch = 100\nepochs = 1\n{job}"));
        let outcome = run(&text, policy, 1);
        assert_eq!((outcome.jobs[0].batches, outcome.jobs[0].epochs), (100, 1));
        // The first and the last mini-batches fill and drain the pipeline.
        let stages = 0.3 / 0.03 / 100.0;
        close(batch_ms(&outcome), expected, stages);
        let busy = outcome.jobs[0].gpu_busy;
        assert!(busy <= 1.0 && busy > 0.15, "{busy}");
    }
}

/// Latency and limit of a connection: eight connections, each 10 kB in 1 ms + 1 ms.
#[test]
fn connections_have_limits_each_and_together() {
    let job = "batch = 100\nepochs = 1\ncompute = \"1ms\"\nconnections = 8";
    for (bandwidth, expected) in [("1GB/s", 25.0), ("20MB/s", 50.0)] {
        let origin =
            format!("bandwidth = \"{bandwidth}\"\nper_connection = \"10MB/s\"\nlatency = \"1ms\"");
        let outcome = run(&one_job(&origin, "capacity = \"100%\"", job), Policy::None, 1);
        close(batch_ms(&outcome), expected, 0.02);
    }
}

#[test]
fn jobs_share_the_origin_fairly() {
    let job = "count = 4\nbatch = 100\nepochs = 1\ncompute = \"1ms\"";
    let outcome =
        run(&one_job("bandwidth = \"40MB/s\"", "capacity = \"100%\"", job), Policy::None, 1);
    for job in &outcome.jobs {
        close(job.seconds, 10.0, 0.02);
    }
    assert_eq!(outcome.origin_bytes, 400_000_000);
}

/// Every item has a source, and everything fetched is accounted for.
#[test]
fn bytes_are_conserved() {
    let job = "count = 3\nbatch = 128\nepochs = 3\ncompute = \"3ms\"";
    for policy in Policy::ALL {
        for seed in 0..3 {
            let text = one_job("bandwidth = \"100MB/s\"", "capacity = \"30%\"\nnodes = 2", job);
            let outcome = run(&text, policy, seed);
            let reads = outcome.reads();
            assert_eq!(reads.items, 3 * 3 * 10_000, "{policy}: every item, epoch and job");
            assert_eq!(outcome.item_reads, reads.items);
            assert_eq!(reads.items, reads.hits + reads.waited + reads.misses, "{policy}");
            let ahead: u64 = outcome.datasets.iter().map(|dataset| dataset.ahead_bytes).sum();
            assert_eq!(outcome.origin_bytes, reads.misses * 10_000 + ahead, "{policy}");
            assert_eq!(outcome.flash_bytes, (reads.hits + reads.waited) * 10_000, "{policy}");
            assert!(outcome.jobs.iter().all(|job| job.epochs == 3), "{policy}");
        }
    }
}

#[test]
fn a_seed_determines_the_outcome() {
    let job = "count = 3\nbatch = 128\nepochs = 2\ncompute = \"3ms\"";
    let text = one_job("bandwidth = \"100MB/s\"", "capacity = \"30%\"\nnodes = 3", job)
        + "[[fault]]\nat = \"1s\"\nnode = 2\n"
        + "[[fault]]\nat = \"2s\"\njob = \"trainer-2\"\nfor = \"1s\"\n";
    for policy in Policy::ALL {
        assert_eq!(run(&text, policy, 5), run(&text, policy, 5), "{policy}");
    }
    assert_ne!(run(&text, Policy::Lru, 5), run(&text, Policy::Lru, 6));
}

/// Promise 2 (exactly once) is asserted inside every job; here the jobs only have to finish.
#[test]
fn killed_jobs_restart_and_finish_their_epochs() {
    for policy in Policy::ALL {
        for seed in 0..5 {
            let job = "count = 3\nbatch = 100\nepochs = 2\ncompute = \"10ms\"";
            let text = one_job("bandwidth = \"200MB/s\"", "capacity = \"30%\"", job)
                + "[[fault]]\nat = \"500ms\"\njob = \"trainer-1\"\nfor = \"300ms\"\n"
                + "[[fault]]\nat = \"900ms\"\njob = \"trainer-1\"\nfor = \"10s\"\n"
                + "[[fault]]\nat = \"700ms\"\njob = \"trainer-3\"\n";
            let outcome = run(&text, policy, seed);
            let epochs: Vec<u64> = outcome.jobs.iter().map(|job| job.epochs).collect();
            assert_eq!(epochs, [2, 2, 0], "{policy}");
        }
    }
}

#[test]
fn a_slow_origin_costs_time_and_a_lost_node_costs_warmth_only() {
    let job = "batch = 100\nepochs = 2\ncompute = \"1ms\"";
    let whole = one_job("bandwidth = \"100MB/s\"", "capacity = \"100%\"\nnodes = 2", job);
    let seconds = |faults: &str| run(&(whole.clone() + faults), Policy::Lru, 1).seconds;
    let undisturbed = seconds("");
    // Half a second of the first epoch at a tenth of the rate.
    close(
        seconds("[[fault]]\nat = \"0s\"\norigin = \"10MB/s\"\nfor = \"500ms\"\n") - undisturbed,
        0.45,
        0.05,
    );
    // Half of the items read so far are fetched again.
    close(seconds("[[fault]]\nat = \"1s\"\nnode = 1\n") - undisturbed, 0.4, 0.2);
}

/// Hit rate of LRU under one job's random order: c + (1 - c) ln(1 - c).
#[test]
fn lru_matches_the_theory_for_a_random_order() {
    for share in [0.1_f64, 0.2, 0.5, 0.9] {
        let cache = format!("capacity = \"{}%\"", share * 100.0);
        let job = "batch = 50\nepochs = 11\ncompute = \"1ms\"\ndepth = 1";
        let mut text = one_job("bandwidth = \"100MB/s\"", &cache, job);
        text = text.replacen("about", "warm_up = \"1s\"\nabout", 1);
        let hits = run(&text, Policy::Lru, 2).reads().hit_rate();
        let theory = share + (1.0 - share) * (1.0 - share).ln();
        assert!((hits - theory).abs() < 0.01, "{share}: {hits} is not {theory}");
    }
}

/// One job alone: no reading order gets more than the cached share from the cache, and forebay gets
/// that share within 2 %. The origin delivers the rest of an epoch and next to nothing twice,
/// probes aside.
#[test]
fn one_job_hits_the_cached_share() {
    for share in [0.1_f64, 0.2, 0.5, 0.9] {
        let cache = format!("capacity = \"{}%\"", share * 100.0);
        let job = "batch = 50\nepochs = 11\ncompute = \"5ms\"";
        let text = one_job("bandwidth = \"100MB/s\"", &cache, job);
        // An epoch takes at most 1 s; the warm-up is about one epoch.
        let text = text.replacen("about", "warm_up = \"1.2s\"\nabout", 1);
        let outcome = run(&text, Policy::Forebay, 2);
        let reads = outcome.reads();
        let hits = reads.hit_rate();
        assert!((hits / share - 1.0).abs() <= 0.02, "{share}: {hits}");
        let epochs = reads.items as f64 / 10_000.0;
        let item_bytes = 10_000;
        let origin_bytes = outcome.datasets[0].origin_bytes - reads.probes * item_bytes;
        let per_epoch = origin_bytes as f64 / epochs / 100e6;
        assert!(per_epoch <= 1.02 * (1.0 - share), "{share}: {per_epoch} of the dataset an epoch");
    }
}

/// A small figure 7: four jobs, three that join later, space for two of ten chunks.
fn rotating(policy: Policy) -> Outcome {
    let text = "about = \"a small figure 7\"\nduration = \"60s\"\n\
        origin = { bandwidth = \"1GB/s\", per_connection = \"5MB/s\" }\n\
        cache = { capacity = \"20%\", read_bandwidth = \"1GB/s\", nodes = 4 }\n\
        [[dataset]]\nname = \"photos\"\nsize = \"500MB\"\nitems = 50_000\n\
        [[job]]\nname = \"first\"\ncount = 4\ndataset = \"photos\"\nbatch = 64\ncompute = \
        \"8ms\"\n\
        [[job]]\nname = \"late\"\ncount = 3\ndataset = \"photos\"\nbatch = 64\ncompute = \
        \"8ms\"\nstarts = \"20s\"\n";
    run(text, policy, 4)
}

#[test]
fn at_most_two_chunks_rotate() {
    for policy in [Policy::Quiver, Policy::QuiverPreload, Policy::Forebay] {
        let outcome = rotating(policy);
        assert_eq!(reproduce::chunks_at_once(&outcome), 2, "{policy}");
        // More than six epochs, so every chunk is loaded several times.
        for chunk in 0..10 {
            let stays = outcome.residency.iter().filter(|stay| stay.chunk == chunk).count();
            assert!(stays >= 3, "{policy}: chunk {chunk} was loaded {stays} times");
        }
    }
}

/// Origin bytes per turn of the fastest job, for jobs that rotate at equal rates: one dataset at
/// most. Quiver's rule evicts what slower jobs still need, and reads it again.
#[test]
fn rotating_jobs_share_their_fetches() {
    for (policy, most) in [
        (Policy::None, 7.0),
        (Policy::Quiver, 1.3),
        (Policy::QuiverPreload, 1.4),
        (Policy::Forebay, 1.1),
    ] {
        let outcome = rotating(policy);
        let items = outcome.jobs.iter().map(|job| job.reads.items).max().unwrap();
        let turns = items as f64 / 50_000.0;
        let probes: u64 = outcome.jobs.iter().map(|job| job.reads.probes * 10_000).sum();
        let fetched = (outcome.origin_bytes - probes) as f64 / turns / 500e6;
        assert!(fetched <= most, "{policy}: {fetched} of the dataset per turn");
    }
}

/// Quiver 5.1: idle links bring in a chunk while jobs read the other one, and no item twice.
#[test]
fn quivers_preload_fetches_ahead_and_nothing_twice() {
    let [plain, preload] = [Policy::Quiver, Policy::QuiverPreload].map(rotating);
    let ahead = |outcome: &Outcome| outcome.datasets[0].ahead_bytes;
    assert!(ahead(&plain) == 0 && ahead(&preload) > 500_000_000, "{}", ahead(&preload));
    let duplicates = |outcome: &Outcome| outcome.reads().duplicates;
    assert!(
        duplicates(&preload) * 10 < duplicates(&plain),
        "{} items twice, {} without claims",
        duplicates(&preload),
        duplicates(&plain)
    );
}

/// A small figure 6, a twentieth of everything but the GPUs: with the knapsack the cluster is at
/// least as fast as with the greedy rule, for every cache size.
#[test]
fn the_knapsack_is_never_worse_than_the_greedy_rule() {
    let job = |name: &str, dataset: &str, batch: u32, compute: &str| {
        format!(
            "[[job]]\nname = \"{name}\"\ndataset = \"{dataset}\"\ncount = 4\ngpus = 4\nbatch = \
             {batch}\n\
             compute = \"{compute}\"\nworkers = 8\n"
        )
    };
    let dataset = |name: &str, size: &str, items: u32, chunks: u32| {
        format!(
            "[[dataset]]\nname = \"{name}\"\nsize = \"{size}\"\nitems = {items}\nchunks = \
             {chunks}\n"
        )
    };
    // Nightly runs use all three sizes; otherwise one is enough.
    let sizes: &[&str] =
        if std::env::var_os("SEEDS").is_some() { &["5GB", "10GB", "35GB"] } else { &["10GB"] };
    for size in sizes {
        let text = [
            "about = \"a small figure 6\"\nwarm_up = \"60s\"\nduration = \"90s\"\n".to_owned(),
            "origin = { bandwidth = \"6GB/s\", per_connection = \"26.18MB/s\", latency = \"1ms\" \
             }\n"
            .to_owned(),
            format!(
                "cache = {{ capacity = \"{size}\", read_bandwidth = \"2GB/s\", nodes = 12 }}\n"
            ),
            dataset("imagenet", "7.7GB", 64_000, 10),
            dataset("openimages", "26.5GB", 87_000, 35),
            dataset("librispeech", "4.5GB", 14_000, 10),
            job("resnet50", "imagenet", 26, "4.6ms"),
            job("inception", "openimages", 13, "9.1ms"),
            job("deepspeech2", "librispeech", 7, "8.8ms"),
        ]
        .concat();
        let [none, quiver, ours] =
            [Policy::None, Policy::Quiver, Policy::Forebay].map(|policy| run(&text, policy, 1));
        let [quiver, ours] = [quiver, ours].map(|outcome| outcome.speed_up(&none).unwrap());
        assert!(ours >= quiver && quiver > 1.2, "{size}: forebay {ours}, Quiver {quiver}");
        let scenario = Scenario::parse(&text, "test.toml", "test").unwrap();
        let bound = bounds::speed_up(&scenario.setups[0], &none).unwrap();
        assert!(ours <= bound * 1.005, "{size}: {ours} is above the bound {bound}");
    }
}

/// Mini-batches that the GPUs had not finished when the job was killed are drawn again: none is
/// missing at the end.
#[test]
fn a_killed_job_computes_all_its_mini_batches() {
    for policy in Policy::ALL {
        for (end, batches) in [("epochs = 1", 100), ("batches = 130", 130)] {
            // In the first, in the middle, and in the last mini-batch.
            for at in ["15ms", "504ms", "995ms"] {
                let job = format!("batch = 100\n{end}\ncompute = \"10ms\"");
                let text = one_job("bandwidth = \"1GB/s\"", "capacity = \"30%\"", &job)
                    + &format!("[[fault]]\nat = \"{at}\"\njob = \"trainer\"\nfor = \"1s\"\n");
                let outcome = run(&text, policy, 1);
                assert_eq!(outcome.jobs[0].batches, batches, "{policy}, {end}, killed at {at}");
                assert!(outcome.faults[0].text.contains("trainer was killed"), "{policy}");
            }
        }
    }
}

/// Two datasets, of which the cache holds one tenth, and a job for each; `fault` may kill the
/// first.
fn two_datasets(fault: &str) -> String {
    let dataset =
        |name: &str| format!("[[dataset]]\nname = \"{name}\"\nsize = \"100GB\"\nitems = 100_000\n");
    let job = |name: &str, dataset: &str, gpus: u32| {
        format!(
            "[[job]]\nname = \"{name}\"\ndataset = \"{dataset}\"\ngpus = {gpus}\nbatch = \
             100\ncompute = \"100ms\"\n"
        )
    };
    let start = "about = \"a test\"\nduration = \"30min\"\norigin = { bandwidth = \"200MB/s\" }\n\
                 cache = { capacity = \"10%\", read_bandwidth = \"2GB/s\" }\n";
    let jobs = [job("large", "first", 8), job("small", "second", 1)];
    [start, &dataset("first"), &dataset("second"), &jobs.concat(), fault].concat()
}

/// A killed job that does not return loses its space to live jobs when its lease ends.
#[test]
fn a_dead_job_loses_its_space() {
    for policy in [Policy::Quiver, Policy::Forebay] {
        let alive = run(&two_datasets(""), policy, 1);
        let fault = "[[fault]]\nat = \"1min\"\njob = \"large\"\n";
        let killed = run(&two_datasets(fault), policy, 1);
        let [before, after] = [&alive, &killed].map(|outcome| outcome.jobs[1].hit_share);
        // Under the paper's policy, one job alone has no hits in two chunks.
        let gains = policy == Policy::Forebay;
        assert!(before < 0.01 && (after > 0.05) == gains, "{policy}: {before}, then {after}");
        let second = |outcome: &Outcome| {
            let stays = outcome.residency.iter().filter(|stay| stay.dataset == "second");
            stays.map(|stay| stay.from_seconds).fold(f64::MAX, f64::min)
        };
        // The lease is ten minutes; space is split twice a minute.
        assert!((600.0..=700.0).contains(&second(&killed)), "{policy}: {}", second(&killed));
    }
}

/// A job that waits for longer than its lease keeps renewing it.
#[test]
fn a_waiting_job_keeps_its_lease() {
    let job = "batch = 100\nepochs = 3\ncompute = \"10ms\"";
    let text = one_job("bandwidth = \"100MB/s\"", "capacity = \"20%\"", job)
        + "[[fault]]\nat = \"500ms\"\norigin = \"1B/s\"\nfor = \"15min\"\n";
    for policy in [Policy::Quiver, Policy::Forebay] {
        let outcome = run(&text, policy, 1);
        assert_eq!(outcome.jobs[0].epochs, 3, "{policy}");
        let lost = |decision: &&Decision| decision.text.contains("no job reads it");
        assert_eq!(outcome.decisions.iter().find(lost), None, "{policy}");
    }
}

/// Cached data stays until others need the space: jobs on two datasets, one after the other, twice.
#[test]
fn the_next_job_hits_what_the_last_one_left() {
    let job = |name: &str, dataset: &str, starts: u32| {
        format!(
            "[[job]]\nname = \"{name}\"\ndataset = \"{dataset}\"\nbatch = 100\nepochs = 1\n\
             compute = \"30ms\"\nstarts = \"{starts}s\"\n"
        )
    };
    let jobs = [("a", "x", 0), ("b", "y", 100), ("c", "x", 200), ("d", "y", 300)]
        .map(|(name, dataset, starts)| job(name, dataset, starts));
    let datasets = ["x", "y"]
        .map(|name| format!("[[dataset]]\nname = \"{name}\"\nsize = \"100MB\"\nitems = 10_000\n"));
    let text = |capacity: &str| {
        format!(
            "about = \"a test\"\n[origin]\nbandwidth = \"20MB/s\"\n[cache]\n\
             read_bandwidth = \"1GB/s\"\ncapacity = \"{capacity}\"\n{}{}",
            datasets.concat(),
            jobs.concat()
        )
    };
    let fetched = |capacity| run(&text(capacity), Policy::Forebay, 1).origin_bytes;
    assert_eq!(fetched("200MB"), 200_000_000, "each dataset once");
    assert!(fetched("150MB") < 400_000_000, "half of one stays");
}

/// Promise 6: space that moves from one dataset to another is not used by both while the last items
/// of an evicted chunk are on their way to jobs. The manager asserts it at every split.
#[test]
fn space_is_not_used_twice_while_a_chunk_drains() {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let dataset =
            |name: &str| format!("[[dataset]]\nname = \"{name}\"\nsize = \"4GB\"\nitems = 4000\n");
        let mut job = |name: &str, dataset: &str| {
            let (compute, starts) = (random.u32(5..400), random.u32(0..60));
            format!(
                "[[job]]\nname = \"{name}\"\ndataset = \"{dataset}\"\ncount = 2\nbatch = \
                 16\ncompute = \"{compute}ms\"\nstarts = \"{starts}s\"\nepochs = 6\n"
            )
        };
        let jobs = [job("one", "first"), job("two", "second")].concat();
        let text = [
            "about = \"a test\"\norigin = { bandwidth = \"200MB/s\" }\n",
            "cache = { capacity = \"1GB\", read_bandwidth = \"2GB/s\" }\n",
            &dataset("first"),
            &dataset("second"),
            &jobs,
        ]
        .concat();
        for policy in [Policy::Quiver, Policy::QuiverPreload, Policy::Forebay] {
            let outcome = run(&text, policy, seed);
            assert!(outcome.jobs.iter().all(|job| job.epochs == 6), "{policy}, seed {seed}");
        }
    }
}

/// A cache below one chunk is legal: every policy runs, and none is slower than without a cache.
#[test]
fn a_cache_may_be_smaller_than_a_chunk() {
    let job = "count = 2\nbatch = 100\nepochs = 3\ncompute = \"5ms\"";
    for capacity in ["0%", "1%", "4%", "9%"] {
        let cache = format!("capacity = \"{capacity}\"");
        let text = one_job("bandwidth = \"100MB/s\"", &cache, job);
        let none = run(&text, Policy::None, 1).seconds;
        for policy in Policy::ALL {
            let outcome = run(&text, policy, 1);
            assert!(outcome.seconds <= none * 1.02, "{policy}: {} of {none}", outcome.seconds);
        }
    }
}

/// Of two overlapping slow-downs the slower one counts.
#[test]
fn slow_downs_of_the_origin_may_overlap() {
    let job = "batch = 100\nepochs = 1\ncompute = \"1ms\"";
    let fault = |at: &str, rate: &str, lasting: &str| {
        format!("[[fault]]\nat = \"{at}\"\norigin = \"{rate}\"\nfor = \"{lasting}\"\n")
    };
    let text = one_job("bandwidth = \"100MB/s\"", "capacity = \"100%\"", job)
        + &fault("100ms", "1MB/s", "10s")
        + &fault("200ms", "2MB/s", "1s");
    let late = text.clone() + &fault("1min", "1MB/s", "1s");
    let faults = run(&late, Policy::None, 1).faults;
    assert!(faults.last().unwrap().text.contains("all jobs have ended"), "{faults:?}");
    // A tenth of the dataset before, a tenth during the ten seconds, the rest after.
    close(run(&text, Policy::None, 1).seconds, 10.9, 0.01);
}

/// Counts add up with a warm-up and killed jobs, and are finite.
#[test]
fn counts_add_up_from_the_warm_up_on() {
    let job = "count = 3\nbatch = 100\nepochs = 3\ncompute = \"10ms\"";
    let whole = one_job("bandwidth = \"100MB/s\"", "capacity = \"30%\"", job)
        + "[[fault]]\nat = \"900ms\"\njob = \"trainer-1\"\nfor = \"300ms\"\n";
    for policy in Policy::ALL {
        let warm = run(&whole.replacen("about", "warm_up = \"1.003s\"\nabout", 1), policy, 1);
        for job in &warm.jobs {
            let reads = job.reads;
            assert_eq!(reads.items, reads.hits + reads.waited + reads.misses, "{policy}");
            assert!(job.gpu_busy > 0.0 && job.gpu_busy <= 1.0, "{policy}: {}", job.gpu_busy);
        }
        let all = run(&whole, policy, 1);
        assert!(warm.item_reads < all.item_reads, "{policy}");
        assert_eq!(warm.item_reads_in_all, all.item_reads, "{policy}");
        assert!(warm.origin_bytes <= all.origin_bytes, "{policy}");
        let of_datasets: u64 = warm.datasets.iter().map(|dataset| dataset.origin_bytes).sum();
        assert_eq!(warm.origin_bytes, of_datasets, "{policy}");
        // A warm-up that outlasts the run leaves nothing, without a division by zero.
        let late = run(&whole.replacen("about", "warm_up = \"1000min\"\nabout", 1), policy, 1);
        assert_eq!((late.item_reads, late.origin_bytes, late.flash_bytes), (0, 0, 0), "{policy}");
        assert!(late.jobs.iter().all(|job| job.batch_seconds.is_none() && job.gpu_busy == 0.0));
        assert_eq!((late.speed_up(&all), late.origin_share()), (None, None), "{policy}");
    }
}

/// A job that ended before the warm-up did is left out of the speed-up.
#[test]
fn jobs_without_mini_batches_do_not_count() {
    let text = one_job(
        "bandwidth = \"100MB/s\"",
        "capacity = \"30%\"",
        "batch = 100\nepochs = 1\ncompute = \"10ms\"",
    ) + "[[job]]\nname = \"other\"\ndataset = \"photos\"\nbatch = 100\nepochs = 9\n\
         compute = \"10ms\"\n";
    let text = text.replacen("about", "warm_up = \"5s\"\nabout", 1);
    let [none, hit] = [Policy::None, Policy::Hit].map(|policy| run(&text, policy, 1));
    assert_eq!(none.jobs[0].batch_seconds, None);
    close(hit.speed_up(&none).unwrap(), 1.0, 0.05);
}

/// Mini-batches at the edges of the counted time count in part, so no job is faster than its GPUs.
#[test]
fn no_policy_beats_the_bound() {
    let job = "count = 3\nbatch = 100\ncompute = \"92.3ms\"";
    let text = one_job("bandwidth = \"100MB/s\"", "capacity = \"100%\"", job).replacen(
        "about",
        "warm_up = \"1s\"\nduration = \"2.03s\"\nabout",
        1,
    );
    let scenario = Scenario::parse(&text, "test.toml", "test").unwrap();
    let none = run(&text, Policy::None, 1);
    let bound = bounds::speed_up(&scenario.setups[0], &none).unwrap();
    for policy in Policy::ALL {
        let speed = run(&text, policy, 1).speed_up(&none).unwrap();
        assert!(speed <= bound * (1.0 + 1e-9), "{policy}: {speed} of at most {bound}");
    }
}

/// Items larger than 4 GB, and the largest sizes of a scenario.
#[test]
fn items_may_be_large() {
    let text = "about = \"a test\"\norigin = { bandwidth = \"1000PB/s\" }\n\
        cache = { capacity = \"1000PB\", read_bandwidth = \"1000PB/s\", nodes = 10_000 }\n\
        [[dataset]]\nname = \"films\"\nsize = \"1000PB\"\nitems = 1000\n\
        [[job]]\nname = \"trainer\"\ncount = 3\ndataset = \"films\"\nbatch = 100\ncompute = \
        \"1s\"\nepochs = 30\n";
    for policy in Policy::ALL {
        let outcome = run(text, policy, 1);
        assert!(outcome.jobs.iter().all(|job| job.epochs == 30), "{policy}");
    }
}

#[test]
fn chunks_may_be_many() {
    let job = "batch = 100\nepochs = 1\ncompute = \"1ms\"";
    let text = one_job("bandwidth = \"1GB/s\"", "capacity = \"20%\"", job);
    let text = text.replacen("items = 10_000", "items = 40_000\nchunks = 32768", 1);
    let scenario = Scenario::parse(&text, "test.toml", "test").unwrap();
    let layout = manager_of(&scenario).layout(0);
    assert_eq!(layout.items(), 40_000);
}

fn manager_of(scenario: &Scenario) -> manager::Manager {
    manager::Manager::new(&scenario.setups[0], Policy::Forebay, 0)
}
