"""The tables of the Star Schema Benchmark at a small size, by the rules of its dbgen and a fixed seed.

Two rules differ, so that each of the 13 queries returns rows: a fifth of all customers and suppliers live in
the two cities of queries 3.3 and 3.4, and there are more customers and suppliers than at this scale.
"""

import csv
import datetime
import random

import duckdb

SEED = 20_260_101
ORDERS, CUSTOMERS, SUPPLIERS, PARTS = 15_000, 1_000, 300, 1_500

NATIONS = {
    "AFRICA": ("ALGERIA", "ETHIOPIA", "KENYA", "MOROCCO", "MOZAMBIQUE"),
    "AMERICA": ("ARGENTINA", "BRAZIL", "CANADA", "PERU", "UNITED STATES"),
    "ASIA": ("CHINA", "INDIA", "INDONESIA", "JAPAN", "VIETNAM"),
    "EUROPE": ("FRANCE", "GERMANY", "ROMANIA", "RUSSIA", "UNITED KINGDOM"),
    "MIDDLE EAST": ("EGYPT", "IRAN", "IRAQ", "JORDAN", "SAUDI ARABIA"),
}
REGIONS = {nation: region for region, nations in NATIONS.items() for nation in nations}
SEGMENTS = ("AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY")
PRIORITIES = ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECI", "5-LOW")
MODES = ("AIR", "FOB", "MAIL", "RAIL", "REG AIR", "SHIP", "TRUCK")
COLORS = ("almond", "azure", "blue", "chocolate", "forest", "green", "ivory", "lime", "navy", "plum", "red", "snow")
TYPES = ("STANDARD ANODIZED TIN", "SMALL PLATED COPPER", "LARGE BRUSHED STEEL", "PROMO BURNISHED NICKEL")
CONTAINERS = ("SM CASE", "LG BOX", "MED BAG", "JUMBO JAR", "WRAP PKG")
FIRST_DAY, LAST_DAY = datetime.date(1992, 1, 1), datetime.date(1998, 12, 31)
# Orders end early enough for their goods to arrive before the last day, as in dbgen.
LAST_ORDER_DAY = datetime.date(1998, 8, 2)

SCHEMAS = {
    "customer": """c_custkey integer, c_name text, c_address text, c_city text, c_nation text, c_region text,
        c_phone text, c_mktsegment text""",
    "supplier": """s_suppkey integer, s_name text, s_address text, s_city text, s_nation text, s_region text,
        s_phone text""",
    "part": """p_partkey integer, p_name text, p_mfgr text, p_category text, p_brand1 text, p_color text, p_type text,
        p_size integer, p_container text""",
    "date": """d_datekey integer, d_date text, d_dayofweek text, d_month text, d_year integer, d_yearmonthnum integer,
        d_yearmonth text, d_daynuminweek integer, d_daynuminmonth integer, d_daynuminyear integer,
        d_monthnuminyear integer, d_weeknuminyear integer, d_sellingseason text, d_lastdayinweekfl integer,
        d_lastdayinmonthfl integer, d_holidayfl integer, d_weekdayfl integer""",
    "lineorder": """lo_orderkey integer, lo_linenumber integer, lo_custkey integer, lo_partkey integer,
        lo_suppkey integer, lo_orderdate integer, lo_orderpriority text, lo_shippriority text, lo_quantity integer,
        lo_extendedprice integer, lo_ordtotalprice integer, lo_discount integer, lo_revenue integer,
        lo_supplycost integer, lo_tax integer, lo_commitdate integer, lo_shipmode text""",
}


def key(day):
    return day.year * 10_000 + day.month * 100 + day.day


def place(rng):
    """Returns a city, its nation and its region. A city is the first nine letters of its nation, and a digit."""
    if rng.random() < 0.2:
        return rng.choice(("UNITED KI1", "UNITED KI5")), "UNITED KINGDOM", "EUROPE"
    nation = rng.choice(list(REGIONS))
    return f"{nation[:9]:9}{rng.randrange(10)}", nation, REGIONS[nation]


def address(rng):
    return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz ,0123456789", k=rng.randint(10, 25))).strip()


def phone(rng, nation):
    country = 10 + list(REGIONS).index(nation)
    return f"{country}-{rng.randint(100, 999)}-{rng.randint(100, 999)}-{rng.randint(1000, 9999)}"


def customers(rng):
    for number in range(1, CUSTOMERS + 1):
        city, nation, region = place(rng)
        name = f"Customer#{number:09}"
        yield number, name, address(rng), city, nation, region, phone(rng, nation), rng.choice(SEGMENTS)


def suppliers(rng):
    for number in range(1, SUPPLIERS + 1):
        city, nation, region = place(rng)
        yield number, f"Supplier#{number:09}", address(rng), city, nation, region, phone(rng, nation)


def parts(rng):
    """Each of five manufacturers has five categories, and each of those has forty brands."""
    for number in range(1, PARTS + 1):
        color, second = rng.sample(COLORS, 2)
        maker = f"MFGR#{rng.randint(1, 5)}"
        category = f"{maker}{rng.randint(1, 5)}"
        brand = f"{category}{rng.randint(1, 40)}"
        name = f"{color} {second}"
        yield number, name, maker, category, brand, color, rng.choice(TYPES), rng.randint(1, 50), rng.choice(CONTAINERS)


def season(day):
    if day.month == 12 and day.day <= 28:
        return "Christmas"
    return ("Winter", "Spring", "Summer", "Fall")[(day.month - 1) // 3]


def dates():
    days = (LAST_DAY - FIRST_DAY).days + 1
    for day in (FIRST_DAY + datetime.timedelta(number) for number in range(days)):
        in_week = day.isoweekday() % 7 + 1
        in_year = day.timetuple().tm_yday
        ends_month = (day + datetime.timedelta(1)).month != day.month
        text = f"{day:%B} {day.day}, {day.year}"
        yield (
            key(day), text, f"{day:%A}", f"{day:%B}", day.year, day.year * 100 + day.month, f"{day:%b%Y}", in_week,
            day.day, in_year, day.month, (in_year - 1) // 7 + 1, season(day), int(in_week == 7), int(ends_month),
            int((day.month, day.day) in {(1, 1), (12, 25)}), int(1 < in_week < 7),
        )  # fmt: skip


def price(part):
    """Returns the retail price of a part in cents, which depends on its number."""
    return 90_000 + part // 10 % 20_001 + 100 * (part % 1_000)


def lineorders(rng):
    order_days = (LAST_ORDER_DAY - FIRST_DAY).days
    for order in range(1, ORDERS + 1):
        day = FIRST_DAY + datetime.timedelta(rng.randint(0, order_days))
        customer, priority = rng.randint(1, CUSTOMERS), rng.choice(PRIORITIES)
        lines = []
        for _ in range(rng.randint(1, 7)):
            part, quantity = rng.randint(1, PARTS), rng.randint(1, 50)
            discount, tax = rng.randint(0, 10), rng.randint(0, 8)
            extended = quantity * price(part)
            lines.append((part, quantity, discount, tax, extended))
        total = sum(extended * (100 - off) // 100 * (100 + tax) // 100 for _, _, off, tax, extended in lines)
        for number, (part, quantity, discount, tax, extended) in enumerate(lines, 1):
            commit = key(day + datetime.timedelta(rng.randint(30, 90)))
            revenue, cost = extended * (100 - discount) // 100, 6 * price(part) // 10
            yield (
                order, number, customer, part, rng.randint(1, SUPPLIERS), key(day), priority, "0", quantity, extended,
                total, discount, revenue, cost, tax, commit, rng.choice(MODES),
            )  # fmt: skip


def write(folder):
    """Writes a Parquet file of each table into a folder, and a CSV file of the same rows beside it."""
    rng = random.Random(SEED)
    tables = {
        "customer": customers(rng),
        "supplier": suppliers(rng),
        "part": parts(rng),
        "date": dates(),
        "lineorder": lineorders(rng),
    }
    with duckdb.connect() as duck:
        for name, rows in tables.items():
            with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as out:
                lines = csv.writer(out, lineterminator="\n")
                lines.writerow(column.split()[0] for column in SCHEMAS[name].split(","))
                lines.writerows(rows)
            duck.execute(f'CREATE TABLE "{name}" ({SCHEMAS[name]})')
            duck.execute(f"""COPY "{name}" FROM '{folder / name}.csv' (FORMAT csv, HEADER)""")
            duck.execute(f"""COPY "{name}" TO '{folder / name}.parquet' (FORMAT parquet)""")
