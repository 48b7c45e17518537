//! Configuration files of nodes: parsed and checked, or refused, and never a panic.
#![no_main]

use forebay_fuzz::seed;
use forebay_node::Config;
use libfuzzer_sys::fuzz_target;

fuzz_target!(
    init: {
        let template = Config::template();
        seed("template", template.as_bytes());
        // Its examples are comments with a key in them.
        let lines = template.lines().filter(|line| line.contains(" = "));
        let examples: Vec<&str> = lines.map(|line| line.trim_start_matches("# ")).collect();
        seed("examples", examples.join("\n").as_bytes());
    },
    |text: &str| {
        if let Ok(config) = Config::parse(text) {
            // Values may contradict each other, which only the check finds.
            let _ = config.check();
        }
    }
);
