"""The 13 queries of the Star Schema Benchmark (O'Neil, O'Neil and Chen), by their numbers."""

Q1 = """
select sum(lo_extendedprice * lo_discount) as revenue
from lineorder, date
where lo_orderdate = d_datekey and {}
"""

Q2 = """
select sum(lo_revenue) as revenue, d_year, p_brand1
from lineorder, date, part, supplier
where lo_orderdate = d_datekey and lo_partkey = p_partkey and lo_suppkey = s_suppkey and {}
group by d_year, p_brand1
order by d_year, p_brand1
"""

Q3 = """
select {0}, d_year, sum(lo_revenue) as revenue
from customer, lineorder, supplier, date
where lo_custkey = c_custkey and lo_suppkey = s_suppkey and lo_orderdate = d_datekey and {1}
group by {0}, d_year
order by d_year asc, revenue desc
"""

Q4 = """
select {0}, sum(lo_revenue - lo_supplycost) as profit
from date, customer, supplier, part, lineorder
where lo_custkey = c_custkey and lo_suppkey = s_suppkey and lo_partkey = p_partkey and lo_orderdate = d_datekey and {1}
group by {0}
order by {0}
"""

BY_CITY = "c_city, s_city"
TWO_CITIES = "c_city in ('UNITED KI1', 'UNITED KI5') and s_city in ('UNITED KI1', 'UNITED KI5')"
SIX_YEARS = "d_year >= 1992 and d_year <= 1997"
BOTH_AMERICA = "c_region = 'AMERICA' and s_region = 'AMERICA'"

QUERIES = {
    "1.1": Q1.format("d_year = 1993 and lo_discount between 1 and 3 and lo_quantity < 25"),
    "1.2": Q1.format("d_yearmonthnum = 199401 and lo_discount between 4 and 6 and lo_quantity between 26 and 35"),
    "1.3": Q1.format(
        "d_weeknuminyear = 6 and d_year = 1994 and lo_discount between 5 and 7 and lo_quantity between 26 and 35"
    ),
    "2.1": Q2.format("p_category = 'MFGR#12' and s_region = 'AMERICA'"),
    "2.2": Q2.format("p_brand1 between 'MFGR#2221' and 'MFGR#2228' and s_region = 'ASIA'"),
    "2.3": Q2.format("p_brand1 = 'MFGR#2221' and s_region = 'EUROPE'"),
    "3.1": Q3.format("c_nation, s_nation", f"c_region = 'ASIA' and s_region = 'ASIA' and {SIX_YEARS}"),
    "3.2": Q3.format(BY_CITY, f"c_nation = 'UNITED STATES' and s_nation = 'UNITED STATES' and {SIX_YEARS}"),
    "3.3": Q3.format(BY_CITY, f"{TWO_CITIES} and {SIX_YEARS}"),
    "3.4": Q3.format(BY_CITY, f"{TWO_CITIES} and d_yearmonth = 'Dec1997'"),
    "4.1": Q4.format("d_year, c_nation", f"{BOTH_AMERICA} and (p_mfgr = 'MFGR#1' or p_mfgr = 'MFGR#2')"),
    "4.2": Q4.format(
        "d_year, s_nation, p_category",
        f"{BOTH_AMERICA} and (d_year = 1997 or d_year = 1998) and (p_mfgr = 'MFGR#1' or p_mfgr = 'MFGR#2')",
    ),
    "4.3": Q4.format(
        "d_year, s_city, p_brand1",
        "c_region = 'AMERICA' and s_nation = 'UNITED STATES' and (d_year = 1997 or d_year = 1998)"
        " and p_category = 'MFGR#14'",
    ),
}
