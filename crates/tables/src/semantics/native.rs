//! Functions of fixed meaning, for expressions that plans contain.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

/// A function of values whose types fit already.
#[derive(Debug)]
pub(super) struct Native {
    name: &'static str,
    signature: Signature,
    returns: fn(&[DataType]) -> Result<DataType>,
    run: fn(ScalarFunctionArgs) -> Result<ColumnarValue>,
}

/// Returns a function of `count` arguments.
pub(crate) fn native(
    name: &'static str,
    count: usize,
    returns: fn(&[DataType]) -> Result<DataType>,
    run: fn(ScalarFunctionArgs) -> Result<ColumnarValue>,
) -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::new_from_impl(Native {
        name,
        signature: Signature::any(count, Volatility::Immutable),
        returns,
        run,
    }))
}

/// Returns a function that returns its argument.
pub(super) fn named(name: &'static str) -> Arc<ScalarUDF> {
    let run = |mut arguments: ScalarFunctionArgs| Ok(arguments.args.swap_remove(0));
    native(name, 1, |types| Ok(types[0].clone()), run)
}

/// Returns an identity function that hides its first argument from the optimizer.
pub(super) fn opaque() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::new_from_impl(Native {
        name: "opaque",
        // Otherwise the value of a constant would be known.
        signature: Signature::any(2, Volatility::Volatile),
        returns: |types| Ok(types[0].clone()),
        run: |mut arguments| Ok(arguments.args.swap_remove(0)),
    }))
}

impl PartialEq for Native {
    fn eq(&self, other: &Native) -> bool {
        self.name == other.name
    }
}

impl Eq for Native {}

impl Hash for Native {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl ScalarUDFImpl for Native {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        (self.returns)(types)
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        (self.run)(arguments)
    }
}
