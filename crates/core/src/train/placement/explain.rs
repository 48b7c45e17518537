//! Why a dataset gets what it gets, in words.

use super::{Choice, Dataset, Job, ROTATING};
use crate::ByteSize;

/// Below this a job is as fast without a cache.
const GAIN_MIN: f64 = 1.05;
/// More jobs than these are only counted.
const JOBS_NAMED: usize = 3;

/// One line: what the dataset gets of all the space, and what its jobs gain by it.
pub(super) fn explain(dataset: &Dataset, choice: Choice, space: ByteSize) -> String {
    let all = number(dataset.chunks);
    let least = dataset.least();
    let what = match choice {
        // Otherwise one would wait for the jobs to be measured.
        Choice::Nothing if !dataset.jobs.is_empty() && least > space => format!(
            "nothing is cached, for the least part of it takes {} and there is room for {} (raise `capacity`, \
             or build the digest with more `--chunks`)",
            least.rounded(),
            space.rounded()
        ),
        Choice::Nothing => "nothing is cached".to_owned(),
        _ if dataset.jobs.is_empty() && dataset.kept() == Choice::Nothing => {
            "nothing is cached".to_owned()
        }
        _ if dataset.jobs.is_empty() => {
            "what is cached stays until others need the room".to_owned()
        }
        Choice::Halves => format!("halves of {all} chunks rotate, two at a time"),
        Choice::Chunks(placed) if placed >= dataset.chunks => match dataset.chunks {
            1 => "its one chunk is held".to_owned(),
            _ => format!("all {all} chunks are held"),
        },
        Choice::Chunks(placed) if dataset.rotates(placed) => match placed - ROTATING {
            0 => format!("two of {all} chunks rotate"),
            held => format!("{} held and two rotate", some(held, &all)),
        },
        Choice::Chunks(placed) => {
            format!("{} held, the rest is read through", some(placed, &all))
        }
    };
    let mut jobs: Vec<&Job> = dataset.jobs.iter().collect();
    jobs.sort_by_key(|job| (std::cmp::Reverse(job.gpus), &job.name));
    let gaining = jobs.iter().map(|job| of_job(dataset, job, choice));
    let others = dataset.others.iter().map(|name| format!("job {name} is compute-bound"));
    let mut why: Vec<String> = gaining.chain(others).take(JOBS_NAMED).collect();
    match jobs.len() + dataset.others.len() {
        0 => why.push("no job reads it".to_owned()),
        jobs if jobs > JOBS_NAMED => why.push(format!("and {} more", number_of(jobs - JOBS_NAMED))),
        _ => {}
    }
    format!("{what}: {}", why.join(", "))
}

fn of_job(dataset: &Dataset, job: &Job, choice: Choice) -> String {
    let Some(times) = job.times else {
        return format!("job {} is not measured yet", job.name);
    };
    let best = times.miss / times.hit;
    let gain = times.miss / dataset.time_under(times, choice);
    let gpus = if job.gpus == 1 { "1 GPU".to_owned() } else { format!("{} GPUs", job.gpus) };
    match () {
        () if best < GAIN_MIN || !best.is_finite() => format!("job {} is compute-bound", job.name),
        () if gain < GAIN_MIN => {
            format!("no room for job {}, which could gain {best:.1}x on {gpus}", job.name)
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
    use crate::placement::Times;

    fn job(name: &str, gpus: u32, times: Option<(f64, f64, f64)>) -> Job {
        let times = times.map(|(hit, rotating, miss)| Times { hit, rotating, miss });
        Job { name: name.to_owned(), gpus, times }
    }

    #[test]
    fn every_choice_is_explained() {
        let jobs = vec![job("a", 4, Some((1.0, 2.0, 4.2))), job("b", 2, Some((1.0, 1.0, 1.02)))];
        let mut dataset = Dataset::even(10, ByteSize::gb(15), jobs);
        let why = |dataset: &Dataset, choice| explain(dataset, choice, ByteSize::gb(150));
        assert_eq!(
            why(&dataset, Choice::Chunks(2)),
            "two of ten chunks rotate: job a gains 2.1x on 4 GPUs, job b is compute-bound"
        );
        assert_eq!(
            why(&dataset, Choice::Chunks(5)),
            "three of ten chunks are held and two rotate: job a gains 2.5x on 4 GPUs, job b is compute-bound"
        );
        assert_eq!(
            why(&dataset, Choice::Nothing),
            "nothing is cached: no room for job a, which could gain 4.2x on 4 GPUs, job b is compute-bound"
        );
        assert!(
            why(&dataset, Choice::Chunks(3))
                .starts_with("one of ten chunks is held and two rotate")
        );
        dataset.jobs = vec![job("c", 1, None)];
        assert_eq!(
            why(&dataset, Choice::Chunks(4)),
            "four of ten chunks are held, the rest is read through: job c is not measured yet"
        );
        dataset.jobs = (0..6).map(|n| job(&format!("j{n}"), 1, Some((1.0, 1.2, 2.0)))).collect();
        assert_eq!(
            why(&dataset, Choice::Chunks(10)),
            "all ten chunks are held: job j0 gains 2.0x on 1 GPU, job j1 gains 2.0x on 1 GPU, job j2 gains 2.0x on 1 GPU, and three more"
        );
        dataset.jobs.clear();
        dataset.others = vec!["d".to_owned()];
        (dataset.placed, dataset.here) = (Choice::Chunks(2), 2);
        assert_eq!(
            why(&dataset, Choice::Chunks(2)),
            "what is cached stays until others need the room: job d is compute-bound"
        );
        dataset.others.clear();
        assert_eq!(why(&dataset, Choice::Nothing), "nothing is cached: no job reads it");
        dataset.here = 0;
        assert_eq!(why(&dataset, Choice::Chunks(2)), "nothing is cached: no job reads it");
    }

    /// A node of a tenth of a dataset has no room for a chunk, since it spares some: that has to be said.
    #[test]
    fn whoever_has_no_room_is_told_how_much_it_takes() {
        let mut dataset = Dataset::even(10, ByteSize(8_000_000), vec![job("a", 1, None)]);
        assert_eq!(
            explain(&dataset, Choice::Nothing, ByteSize(6_600_000)),
            "nothing is cached, for the least part of it takes 8.00 MB and there is room for 6.60 MB (raise \
             `capacity`, or build the digest with more `--chunks`): job a is not measured yet"
        );
        dataset.jobs.push(job("b", 1, None));
        assert_eq!(dataset.least(), ByteSize(8_000_000), "two halves");
        let enough = explain(&dataset, Choice::Nothing, ByteSize(8_000_000));
        assert!(enough.starts_with("nothing is cached: "), "{enough}");
    }
}
