//! What is counted, and told to Prometheus.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Upper ends of the steps that durations are counted in, in microseconds.
const STEPS_US: [u64; 12] =
    [500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000, 30_000_000];

/// All that is counted.
#[derive(Debug)]
pub(crate) struct Counters {
    since: Instant,
    /// Answers by the first digit of their status.
    answers: [AtomicU64; 6],
    steps: [AtomicU64; STEPS_US.len()],
    took_us: AtomicU64,
    in_flight: AtomicU64,
    limited: AtomicU64,
    refused: AtomicU64,
    /// Boxes that callers say they could use, and could not; and how long they waited for the first.
    created: [AtomicU64; 2],
    created_us: AtomicU64,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            since: Instant::now(),
            answers: Default::default(),
            steps: Default::default(),
            took_us: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            limited: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            created: Default::default(),
            created_us: AtomicU64::new(0),
        }
    }
}

/// Something that is counted elsewhere.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Each with its labels, in braces, or none.
    pub(crate) values: Vec<(String, u64)>,
}

/// A request that is under way. It counts as that until it is dropped.
pub(crate) struct UnderWay<'a>(&'a Counters);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Counters {
    pub(crate) fn begin(&self) -> UnderWay<'_> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        UnderWay(self)
    }

    /// A request has its answer; a stream goes on after that.
    pub(crate) fn answered(&self, status: u16, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        if let Some(class) = self.answers.get(usize::from(status / 100)) {
            class.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(step) = STEPS_US.iter().position(|end| us <= *end) {
            self.steps[step].fetch_add(1, Ordering::Relaxed);
        }
        self.took_us.fetch_add(us, Ordering::Relaxed);
        match status {
            429 => drop(self.limited.fetch_add(1, Ordering::Relaxed)),
            401 | 403 => drop(self.refused.fetch_add(1, Ordering::Relaxed)),
            _ => {}
        }
    }

    /// A caller says that he made a box, or could not, and how long that took for him.
    pub(crate) fn created(&self, success: bool, took: Duration) {
        self.created[usize::from(!success)].fetch_add(1, Ordering::Relaxed);
        if success {
            // What is not true cannot make the sum go over.
            let us = u64::try_from(took.as_micros()).unwrap_or(0).min(24 * 3600 * 1_000_000);
            self.created_us.fetch_add(us, Ordering::Relaxed);
        }
    }

    /// As Prometheus reads it, with what others have counted.
    pub(crate) fn told(&self, more: &[Told]) -> String {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut text = String::new();
        let head = |text: &mut String, name: &str, kind: &str, about: &str| {
            let _ = writeln!(text, "# HELP glasshouse_{name} {about}\n# TYPE glasshouse_{name} {kind}");
        };
        head(
            &mut text,
            "requests_total",
            "counter",
            "Requests that were answered, by the class of their status",
        );
        let mut all = 0;
        for (class, count) in self.answers.iter().enumerate().skip(1) {
            all += get(count);
            let _ = writeln!(text, "glasshouse_requests_total{{status=\"{class}xx\"}} {}", get(count));
        }
        head(&mut text, "request_duration_seconds", "histogram", "Time until the head of an answer");
        let mut sum = 0;
        for (end, count) in STEPS_US.iter().zip(&self.steps) {
            sum += get(count);
            let end = *end as f64 / 1e6;
            let _ = writeln!(text, "glasshouse_request_duration_seconds_bucket{{le=\"{end}\"}} {sum}");
        }
        let _ = writeln!(text, "glasshouse_request_duration_seconds_bucket{{le=\"+Inf\"}} {all}");
        let took = get(&self.took_us) as f64 / 1e6;
        let _ = writeln!(text, "glasshouse_request_duration_seconds_sum {took}");
        let _ = writeln!(text, "glasshouse_request_duration_seconds_count {all}");
        for (name, kind, about, value) in [
            ("requests_in_flight", "gauge", "Requests without an answer yet", get(&self.in_flight)),
            ("rate_limited_total", "counter", "Requests that came too fast", get(&self.limited)),
            (
                "refused_total",
                "counter",
                "Requests that were not let in, or asked for too much",
                get(&self.refused),
            ),
            ("uptime_seconds", "gauge", "How long the server runs", self.since.elapsed().as_secs()),
        ] {
            head(&mut text, name, kind, about);
            let _ = writeln!(text, "glasshouse_{name} {value}");
        }
        let about = "Boxes that callers say they made, and whether they could use them";
        head(&mut text, "client_creates_total", "counter", about);
        for (success, count) in [true, false].iter().zip(&self.created) {
            let _ = writeln!(text, "glasshouse_client_creates_total{{success=\"{success}\"}} {}", get(count));
        }
        head(&mut text, "client_create_seconds_total", "counter", "How long callers say that this took");
        let _ =
            writeln!(text, "glasshouse_client_create_seconds_total {}", get(&self.created_us) as f64 / 1e6);
        for Told { name, about, values } in more {
            let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
            head(&mut text, name, kind, about);
            for (label, value) in values {
                let _ = writeln!(text, "glasshouse_{name}{label} {value}");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_answered_is_counted_once() {
        let counters = Counters::default();
        let under_way = counters.begin();
        counters.answered(200, Duration::from_micros(700));
        counters.answered(429, Duration::from_secs(100));
        counters.answered(999, Duration::ZERO);
        counters.created(true, Duration::from_millis(1500));
        counters.created(false, Duration::from_secs(9));
        let text = counters.told(&[Told {
            name: "boxes",
            about: "Boxes",
            values: vec![("{state=\"running\"}".to_owned(), 3)],
        }]);
        for line in [
            "glasshouse_requests_total{status=\"2xx\"} 1",
            "glasshouse_requests_total{status=\"4xx\"} 1",
            "glasshouse_request_duration_seconds_bucket{le=\"0.001\"} 2",
            "glasshouse_request_duration_seconds_bucket{le=\"+Inf\"} 2",
            "glasshouse_requests_in_flight 1",
            "glasshouse_rate_limited_total 1",
            "glasshouse_boxes{state=\"running\"} 3",
            "glasshouse_client_creates_total{success=\"true\"} 1",
            "glasshouse_client_creates_total{success=\"false\"} 1",
            "glasshouse_client_create_seconds_total 1.5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        drop(under_way);
        assert!(counters.told(&[]).contains("glasshouse_requests_in_flight 0\n"));
    }
}
