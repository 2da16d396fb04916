//! The tables of TPC-H, made by `tpchgen`: the rows are those of TPC's own generator.

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatchReader;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator,
    PartSuppGenerator, RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow,
    SupplierArrow,
};

use super::parquet_file::{Batches, Table, group_count};

/// Lines of an order, about.
const LINES: u64 = 4;

/// Returns the eight tables at a scale factor.
pub fn tables(scale: f64) -> Vec<Table> {
    let customers = CustomerGenerator::calculate_row_count(scale, 1, 1) as u64;
    let orders = OrderGenerator::calculate_row_count(scale, 1, 1) as u64;
    let parts = PartGenerator::calculate_row_count(scale, 1, 1) as u64;
    let offers = PartSuppGenerator::calculate_row_count(scale, 1, 1) as u64;
    let suppliers = SupplierGenerator::calculate_row_count(scale, 1, 1) as u64;
    vec![
        table(
            "region",
            RegionArrow::schema_ref(),
            1,
            move |part, parts| RegionArrow::new(RegionGenerator::new(scale, part, parts)),
        ),
        table(
            "nation",
            NationArrow::schema_ref(),
            1,
            move |part, parts| NationArrow::new(NationGenerator::new(scale, part, parts)),
        ),
        table(
            "supplier",
            SupplierArrow::schema_ref(),
            suppliers,
            move |part, parts| SupplierArrow::new(SupplierGenerator::new(scale, part, parts)),
        ),
        table(
            "customer",
            CustomerArrow::schema_ref(),
            customers,
            move |part, parts| CustomerArrow::new(CustomerGenerator::new(scale, part, parts)),
        ),
        table(
            "part",
            PartArrow::schema_ref(),
            parts,
            move |part, parts| PartArrow::new(PartGenerator::new(scale, part, parts)),
        ),
        table(
            "partsupp",
            PartSuppArrow::schema_ref(),
            offers,
            move |part, parts| PartSuppArrow::new(PartSuppGenerator::new(scale, part, parts)),
        ),
        table(
            "orders",
            OrderArrow::schema_ref(),
            orders,
            move |part, parts| OrderArrow::new(OrderGenerator::new(scale, part, parts)),
        ),
        table(
            "lineitem",
            LineItemArrow::schema_ref(),
            LINES * orders,
            move |part, parts| LineItemArrow::new(LineItemGenerator::new(scale, part, parts)),
        ),
    ]
}

/// Returns a table of about `rows` rows. `reader` reads a part of it; the parts count from 1.
fn table<R: RecordBatchReader + 'static>(
    name: &'static str,
    schema: SchemaRef,
    rows: u64,
    reader: impl Fn(i32, i32) -> R + Sync + 'static,
) -> Table {
    let groups = group_count(rows);
    let rows = move |group: u64| -> Batches {
        let reader = reader(group as i32 + 1, groups as i32);
        Box::new(reader.map(|batch| Ok(batch?)))
    };
    Table {
        name,
        schema,
        groups,
        rows: Box::new(rows),
    }
}
