//! Formats the metrics in Prometheus' text format.

mod documents;
mod process;

use std::fmt::{Display, Write};

use super::{Snapshot, Watched};

/// Returns the metrics page.
pub fn page(watched: &Watched, snapshot: &Snapshot) -> String {
    let mut page = Page::default();
    process::append(&mut page, &snapshot.process);
    documents::append(&mut page, &watched.door, snapshot);
    watched.tables.append(&mut page);
    page.text
}

/// The metrics page while it is built.
#[derive(Default)]
pub struct Page {
    text: String,
}

/// Label names and values.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

impl Page {
    /// Begins a metric. `kind` is `counter`, `gauge` or `histogram`.
    fn family(&mut self, name: &'static str, kind: &str, help: &str) -> Family<'_> {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
        Family { page: self, name }
    }

    /// Begins a metric that only grows.
    pub fn counter(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, "counter", help)
    }

    /// Begins a metric that grows and shrinks.
    pub fn gauge(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, "gauge", help)
    }

    fn line(&mut self, line: impl Display) {
        writeln!(self.text, "{line}").expect("writing to a string does not fail");
    }
}

/// The samples of a metric.
pub struct Family<'a> {
    page: &'a mut Page,
    name: &'static str,
}

impl Family<'_> {
    /// Adds a sample.
    pub fn sample(&mut self, labels: Labels<'_>, value: impl Display) -> &mut Self {
        self.suffixed("", labels, value)
    }

    fn suffixed(&mut self, suffix: &str, labels: Labels<'_>, value: impl Display) -> &mut Self {
        let labels: Vec<String> = labels
            .iter()
            .map(|(name, value)| format!("{name}=\"{}\"", escape(value)))
            .collect();
        let labels = if labels.is_empty() {
            String::new()
        } else {
            format!("{{{}}}", labels.join(","))
        };
        let name = self.name;
        self.page
            .line(format_args!("{name}{suffix}{labels} {value}"));
        self
    }
}

fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// Name, kind and help of a metric, and the function that reads its value.
type Figure<T> = (&'static str, &'static str, &'static str, fn(&T) -> f64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_cannot_end_early() {
        let mut page = Page::default();
        let namespace = "a\"b\\c\nd";
        page.gauge("x", "Help.")
            .sample(&[("namespace", namespace)], 1);
        let expected = "# HELP x Help.\n# TYPE x gauge\nx{namespace=\"a\\\"b\\\\c\\nd\"} 1\n";
        assert_eq!(page.text, expected);
    }
}
