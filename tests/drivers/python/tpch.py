"""The tables of TPC-H at a small scale, from tpchgen-cli, which writes the same rows as dbgen."""

import pathlib
import subprocess
import sys

SCALE = 0.01

# The types that the specification gives, with wide keys as in the generator's files.
SCHEMAS = {
    "region": "r_regionkey bigint, r_name char(25), r_comment varchar(152)",
    "nation": "n_nationkey bigint, n_name char(25), n_regionkey bigint, n_comment varchar(152)",
    "supplier": """s_suppkey bigint, s_name char(25), s_address varchar(40), s_nationkey bigint, s_phone char(15),
        s_acctbal numeric(15,2), s_comment varchar(101)""",
    "customer": """c_custkey bigint, c_name varchar(25), c_address varchar(40), c_nationkey bigint, c_phone char(15),
        c_acctbal numeric(15,2), c_mktsegment char(10), c_comment varchar(117)""",
    "part": """p_partkey bigint, p_name varchar(55), p_mfgr char(25), p_brand char(10), p_type varchar(25),
        p_size integer, p_container char(10), p_retailprice numeric(15,2), p_comment varchar(23)""",
    "partsupp": """ps_partkey bigint, ps_suppkey bigint, ps_availqty integer, ps_supplycost numeric(15,2),
        ps_comment varchar(199)""",
    "orders": """o_orderkey bigint, o_custkey bigint, o_orderstatus char(1), o_totalprice numeric(15,2),
        o_orderdate date, o_orderpriority char(15), o_clerk char(15), o_shippriority integer, o_comment varchar(79)""",
    "lineitem": """l_orderkey bigint, l_partkey bigint, l_suppkey bigint, l_linenumber integer,
        l_quantity numeric(15,2), l_extendedprice numeric(15,2), l_discount numeric(15,2), l_tax numeric(15,2),
        l_returnflag char(1), l_linestatus char(1), l_shipdate date, l_commitdate date, l_receiptdate date,
        l_shipinstruct char(25), l_shipmode char(10), l_comment varchar(44)""",
}


def write(folder, formats=("parquet",), scale=SCALE):
    """Writes a file of each table and format into a folder."""
    program = pathlib.Path(sys.executable).parent / "tpchgen-cli"
    for name in formats:
        command = [program, name, "--scale-factor", str(scale), "--output-dir", folder]
        subprocess.run(command, check=True, capture_output=True)
