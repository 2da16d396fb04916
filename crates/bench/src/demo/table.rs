//! The demonstration's table, and instructions for further use.

use forebay_terminal::{OutputError, print_line};

use super::Outcome;
use super::searches::Search;

/// A table printed row by row, so that the first results appear while slow scans still run.
#[derive(Debug)]
pub struct Table {
    search_width: usize,
    kind_width: usize,
}

impl Table {
    /// Prints the heading. Each column is as wide as its widest cell in `searches`.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub fn begin(searches: &[Search]) -> Result<Table, OutputError> {
        let width = |of: fn(&Search) -> &str| {
            searches
                .iter()
                .map(|search| of(search).len())
                .max()
                .unwrap_or(0)
        };
        let table = Table {
            search_width: width(|search| &search.text),
            kind_width: width(|search| search.kind),
        };
        table.line(
            "search",
            "kind",
            ["matches", "tier", "devices", "buckets", "median", "scan"],
        )?;
        Ok(table)
    }

    /// Prints the row of a search.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub fn row(&mut self, outcome: &Outcome) -> Result<(), OutputError> {
        let buckets = outcome.buckets.map_or("-".to_owned(), |(searched, all)| {
            format!("{searched} of {all}")
        });
        let cells = [
            &outcome.matches.to_string(),
            &outcome.tier,
            &devices(&outcome.devices),
            &buckets,
            &duration(outcome.median_ms),
            &duration(outcome.scan_ms),
        ];
        self.line(&outcome.search, outcome.kind, cells.map(String::as_str))
    }

    fn line(&self, search: &str, kind: &str, cells: [&str; 6]) -> Result<(), OutputError> {
        let [matches, tier, devices, buckets, median, scan] = cells;
        let (search_width, kind_width) = (self.search_width, self.kind_width);
        print_line(format_args!(
            "{search:search_width$}  {kind:kind_width$}  {matches:>9}  {tier:14}  {devices:14}  {buckets:>10}  \
             {median:>9}  {scan:>9}"
        ))
    }
}

/// Formats the devices. Returns `(host)` for exact and prefix searches, because they use no device.
fn devices(names: &[String]) -> String {
    if names.is_empty() {
        "(host)".to_owned()
    } else {
        names.join(" ")
    }
}

/// Formats a time in a suitable unit.
pub(super) fn duration(milliseconds: f64) -> String {
    if milliseconds < 1.0 {
        format!("{:.0} us", milliseconds * 1e3)
    } else if milliseconds < 1e3 {
        format!("{milliseconds:.1} ms")
    } else {
        format!("{:.1} s", milliseconds / 1e3)
    }
}

/// Prints how to connect to the server.
///
/// # Errors
/// If standard output cannot be written.
pub fn print_invitation(
    uri: &str,
    database: &str,
    sql_uri: Option<&str>,
    status_page: Option<&str>,
) -> Result<(), OutputError> {
    let doors = match sql_uri {
        Some(sql_uri) => format!("documents at {uri}/{database} and tables at {sql_uri}"),
        None => format!("documents at {uri}/{database}"),
    };
    let page =
        status_page.map(|page| format!("Live page of devices, buckets and searches: {page}\n"));
    let page = page.unwrap_or_default();
    print_line(format_args!(
        r#"
Serving {doors} until Ctrl-C.
{page}
mongosh "{uri}/{database}"
    db.names.countDocuments({{name: /graphql.*(client|server)/i}})
    db.names.find({{name: /^three-/}}).sort({{name: 1}}).limit(5)
    db.names.explain().count({{name: /webpack/}})

python3 -c '
from pymongo import MongoClient
names = MongoClient("{uri}").{database}.names
print(names.count_documents({{"name": {{"$regex": "webpack"}}}}))'"#
    ))?;
    match sql_uri {
        Some(sql_uri) => print_line(format_args!(
            r#"
psql "{sql_uri}"
    \d lineitem
    SELECT o_orderpriority, count(*), sum(o_totalprice) FROM orders GROUP BY 1 ORDER BY 1;"#
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_shown_in_a_unit_that_suits_them() {
        assert_eq!(duration(0.0514), "51 us");
        assert_eq!(duration(12.34), "12.3 ms");
        assert_eq!(duration(4_321.0), "4.3 s");
    }

    #[test]
    fn a_search_without_devices_is_the_hosts() {
        assert_eq!(devices(&[]), "(host)");
        assert_eq!(
            devices(&["host:0".to_owned(), "host:1".to_owned()]),
            "host:0 host:1"
        );
    }
}
