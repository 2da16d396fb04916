//! Statistics of a data file, as they are in the log.

use arrow::array::Date32Array;
use arrow::datatypes::{DataType, Schema};
use arrow::util::display::array_value_to_string;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::statistics::Statistics;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Maximum bytes of a text in the statistics.
const TEXT_BYTES_MAX: usize = 32;

/// Statistics of a data file. Columns without statistics are absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FileStats {
    /// Number of rows.
    pub num_records: Option<u64>,
    /// Lowest values by column. Dates are texts.
    pub min_values: Map<String, Value>,
    /// Highest values by column.
    pub max_values: Map<String, Value>,
    /// Numbers of nulls by column.
    pub null_count: Map<String, Value>,
}

impl FileStats {
    /// Returns the statistics of a file from its footer.
    pub(crate) fn of_footer(schema: &Schema, footer: &ParquetMetaData) -> FileStats {
        let rows = u64::try_from(footer.file_metadata().num_rows()).unwrap_or_default();
        let mut stats = FileStats {
            num_records: Some(rows),
            ..FileStats::default()
        };
        let leaves = footer.file_metadata().schema_descr();
        for leaf in 0..leaves.num_columns() {
            let name = leaves.column(leaf).path().parts().to_vec();
            let [name] = &*name else {
                continue;
            };
            let Ok(field) = schema.field_with_name(name) else {
                continue;
            };
            let groups = footer.row_groups().iter();
            let groups: Option<Vec<&Statistics>> = groups
                .map(|group| group.column(leaf).statistics())
                .collect();
            if let Some(groups) = groups {
                stats.add(name, field.data_type(), &groups);
            }
        }
        stats
    }

    fn add(&mut self, name: &str, data_type: &DataType, groups: &[&Statistics]) {
        let nulls = groups.iter().map(|group| group.null_count_opt());
        if let Some(nulls) = nulls.sum::<Option<u64>>() {
            self.null_count.insert(name.to_owned(), nulls.into());
        }
        // A group of nulls alone has no bounds.
        let bounds = groups
            .iter()
            .filter(|group| group.min_bytes_opt().is_some());
        let bounds: Option<Vec<_>> = bounds.map(|group| bounds_of(data_type, group)).collect();
        let Some(bounds) = bounds.filter(|bounds| !bounds.is_empty()) else {
            return;
        };
        let lows = bounds.iter().map(|(low, _)| low);
        let highs = bounds.iter().map(|(_, high)| high);
        if let (Some(low), Some(high)) = (lows.min(), highs.max()) {
            self.min_values
                .insert(name.to_owned(), low.to_json(data_type));
            self.max_values
                .insert(name.to_owned(), high.to_json(data_type));
        }
    }
}

/// A value that is compared.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Bound {
    Number(i64),
    Text(String),
}

impl Bound {
    fn to_json(&self, data_type: &DataType) -> Value {
        match (self, data_type) {
            (Bound::Number(days), DataType::Date32) => {
                let days = Date32Array::from(vec![i32::try_from(*days).unwrap_or_default()]);
                array_value_to_string(&days, 0).map_or(Value::Null, Value::from)
            }
            (Bound::Number(number), _) => (*number).into(),
            (Bound::Text(text), _) => text.as_str().into(),
        }
    }
}

fn bounds_of(data_type: &DataType, group: &Statistics) -> Option<(Bound, Bound)> {
    match (data_type, group) {
        (
            DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Date32,
            Statistics::Int32(group),
        ) => Some((
            Bound::Number((*group.min_opt()?).into()),
            Bound::Number((*group.max_opt()?).into()),
        )),
        (DataType::Int64, Statistics::Int64(group)) => Some((
            Bound::Number(*group.min_opt()?),
            Bound::Number(*group.max_opt()?),
        )),
        (DataType::Utf8View, Statistics::ByteArray(group)) => {
            let is_exact = group.min_is_exact() && group.max_is_exact();
            let text = |bytes: &[u8]| {
                let text = str::from_utf8(bytes).ok()?;
                (is_exact && text.len() <= TEXT_BYTES_MAX).then(|| Bound::Text(text.to_owned()))
            };
            Some((
                text(group.min_opt()?.data())?,
                text(group.max_opt()?.data())?,
            ))
        }
        _ => None,
    }
}
