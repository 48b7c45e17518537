//! The explanation of a share, as one line of text.

use super::{Allocation, DatasetDemand, JobDemand, ROTATING};
use crate::ByteSize;

/// A job with a smaller gain is as fast without a cache.
const GAIN_MIN: f64 = 1.05;
/// Jobs that are named. Further ones are counted.
const JOBS_NAMED_MAX: usize = 3;

/// One line: what the dataset gets of all the space, and what its jobs gain.
pub(super) fn explain(dataset: &DatasetDemand, allocation: Allocation, space: ByteSize) -> String {
    let all = number(dataset.chunks);
    let space_min = dataset.space_min();
    let what = match allocation {
        // Without this hint the user would wait for the jobs to be measured.
        Allocation::Nothing if !dataset.jobs.is_empty() && space_min > space => format!(
            "nothing is cached, because it needs at least {} and there are {} (raise `capacity`, \
             or build the digest with more `--chunks`)",
            space_min.rounded(),
            space.rounded()
        ),
        Allocation::Nothing => "nothing is cached".to_owned(),
        _ if dataset.jobs.is_empty() && dataset.cached() == Allocation::Nothing => {
            "nothing is cached".to_owned()
        }
        _ if dataset.jobs.is_empty() => {
            "what is cached stays until others need the room".to_owned()
        }
        Allocation::Halves => format!("halves of {all} chunks rotate, two at a time"),
        Allocation::Chunks(allocated) if allocated >= dataset.chunks => match dataset.chunks {
            1 => "its one chunk is pinned".to_owned(),
            _ => format!("all {all} chunks are pinned"),
        },
        Allocation::Chunks(allocated) if dataset.rotates(allocated) => match allocated - ROTATING {
            0 => format!("two of {all} chunks rotate"),
            pinned => format!("{} pinned and two rotate", some(pinned, &all)),
        },
        Allocation::Chunks(allocated) => {
            format!("{} pinned, the rest is read from the origin", some(allocated, &all))
        }
    };
    let mut jobs: Vec<&JobDemand> = dataset.jobs.iter().collect();
    jobs.sort_by_key(|job| (std::cmp::Reverse(job.gpus), &job.name));
    let cached_jobs = jobs.iter().map(|job| explain_job(dataset, job, allocation));
    let compute_bound =
        dataset.compute_bound.iter().map(|name| format!("job {name} is compute-bound"));
    let mut why: Vec<String> = cached_jobs.chain(compute_bound).take(JOBS_NAMED_MAX).collect();
    match jobs.len() + dataset.compute_bound.len() {
        0 => why.push("no job reads it".to_owned()),
        jobs if jobs > JOBS_NAMED_MAX => {
            why.push(format!("and {} more", number_of(jobs - JOBS_NAMED_MAX)));
        }
        _ => {}
    }
    format!("{what}: {}", why.join(", "))
}

fn explain_job(dataset: &DatasetDemand, job: &JobDemand, allocation: Allocation) -> String {
    let Some(times) = job.times else {
        return format!("job {} is not measured yet", job.name);
    };
    let best = times.miss / times.hit;
    let gain = times.miss / dataset.time_under(times, allocation);
    let gpus = if job.gpus == 1 { "1 GPU".to_owned() } else { format!("{} GPUs", job.gpus) };
    match () {
        () if best < GAIN_MIN || !best.is_finite() => format!("job {} is compute-bound", job.name),
        () if allocation == Allocation::Nothing => {
            format!("no room for job {}, which could gain {best:.1}x on {gpus}", job.name)
        }
        () if gain < GAIN_MIN => {
            format!("job {} gains little of the possible {best:.1}x on {gpus}", job.name)
        }
        () => format!("job {} gains {gain:.1}x on {gpus}", job.name),
    }
}

fn some(count: u32, all: &str) -> String {
    format!("{} of {all} chunks {}", number(count), if count == 1 { "is" } else { "are" })
}

fn number_of(count: usize) -> String {
    u32::try_from(count).map_or_else(|_| count.to_string(), number)
}

fn number(count: u32) -> String {
    const WORDS: [&str; 13] = [
        "no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
        "eleven", "twelve",
    ];
    WORDS.get(count as usize).map_or_else(|| count.to_string(), |word| (*word).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::placement::ModeTimes;

    fn job(name: &str, gpus: u32, times: Option<(f64, f64, f64)>) -> JobDemand {
        let times = times.map(|(hit, rotating, miss)| ModeTimes { hit, rotating, miss });
        JobDemand { name: name.to_owned(), gpus, times }
    }

    #[test]
    fn every_choice_is_explained() {
        let jobs = vec![job("a", 4, Some((1.0, 2.0, 4.2))), job("b", 2, Some((1.0, 1.0, 1.02)))];
        let mut dataset = DatasetDemand::even(10, ByteSize::gb(15), jobs);
        let why =
            |dataset: &DatasetDemand, allocation| explain(dataset, allocation, ByteSize::gb(150));
        assert_eq!(
            why(&dataset, Allocation::Chunks(2)),
            "two of ten chunks rotate: job a gains 2.1x on 4 GPUs, job b is compute-bound"
        );
        assert_eq!(
            why(&dataset, Allocation::Chunks(5)),
            "three of ten chunks are pinned and two rotate: job a gains 2.5x on 4 GPUs, job b is \
             compute-bound"
        );
        assert_eq!(
            why(&dataset, Allocation::Nothing),
            "nothing is cached: no room for job a, which could gain 4.2x on 4 GPUs, job b is \
             compute-bound"
        );
        assert!(
            why(&dataset, Allocation::Chunks(3))
                .starts_with("one of ten chunks is pinned and two rotate")
        );
        dataset.jobs = vec![job("c", 1, None)];
        assert_eq!(
            why(&dataset, Allocation::Chunks(4)),
            "four of ten chunks are pinned, the rest is read from the origin: job c is not \
             measured yet"
        );
        dataset.jobs = (0..6).map(|n| job(&format!("j{n}"), 1, Some((1.0, 1.2, 2.0)))).collect();
        assert_eq!(
            why(&dataset, Allocation::Chunks(10)),
            "all ten chunks are pinned: job j0 gains 2.0x on 1 GPU, job j1 gains 2.0x on 1 GPU, \
             job j2 gains 2.0x on 1 GPU, and three more"
        );
        dataset.jobs.clear();
        dataset.compute_bound = vec!["d".to_owned()];
        (dataset.allocated, dataset.chunks_present) = (Allocation::Chunks(2), 2);
        assert_eq!(
            why(&dataset, Allocation::Chunks(2)),
            "what is cached stays until others need the room: job d is compute-bound"
        );
        dataset.compute_bound.clear();
        assert_eq!(why(&dataset, Allocation::Nothing), "nothing is cached: no job reads it");
        dataset.chunks_present = 0;
        assert_eq!(why(&dataset, Allocation::Chunks(2)), "nothing is cached: no job reads it");
    }

    /// A node of a tenth of a dataset has no space for a chunk, since it spares some: the
    /// explanation says so.
    #[test]
    fn a_dataset_without_space_says_how_much_it_needs() {
        let mut dataset = DatasetDemand::even(10, ByteSize(8_000_000), vec![job("a", 1, None)]);
        assert_eq!(
            explain(&dataset, Allocation::Nothing, ByteSize(6_600_000)),
            "nothing is cached, because it needs at least 8.00 MB and there are 6.60 MB (raise \
             `capacity`, or build the digest with more `--chunks`): job a is not measured yet"
        );
        dataset.jobs.push(job("b", 1, None));
        assert_eq!(dataset.space_min(), ByteSize(8_000_000), "two half-chunks");
        let enough = explain(&dataset, Allocation::Nothing, ByteSize(8_000_000));
        assert!(enough.starts_with("nothing is cached: "), "{enough}");
    }
}
