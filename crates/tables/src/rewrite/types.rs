//! Names of types that PostgreSQL has and DataFusion lacks.

use datafusion::sql::sqlparser::ast::{ArrayElemTypeDef, DataType};

/// Text types of PostgreSQL's catalogue: `'a'::bpchar` is how postgres_fdw sends a constant of `char(n)`.
const TEXTS: [&str; 4] = ["bpchar", "\"char\"", "name", "unknown"];

/// Replaces a type by one that DataFusion has.
pub(super) fn known(data_type: &mut DataType) {
    match data_type {
        DataType::Array(ArrayElemTypeDef::SquareBracket(item, _)) => known(item),
        DataType::Time(digits, _) => *digits = None,
        DataType::CharacterVarying(_) | DataType::CharVarying(_) | DataType::Character(_) => {
            *data_type = DataType::Text;
        }
        DataType::Custom(name, arguments) if arguments.is_empty() => {
            let name = name.to_string();
            if TEXTS.iter().any(|text| name.eq_ignore_ascii_case(text)) {
                *data_type = DataType::Text;
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::sql::sqlparser::ast::{Ident, ObjectName};

    #[test]
    fn types_are_replaced_in_arrays_too() {
        let bpchar = ObjectName::from(vec![Ident::new("bpchar")]);
        let item = Box::new(DataType::Custom(bpchar, Vec::new()));
        let mut array = DataType::Array(ArrayElemTypeDef::SquareBracket(item, None));
        known(&mut array);
        assert_eq!(array.to_string(), "TEXT[]");
    }
}
