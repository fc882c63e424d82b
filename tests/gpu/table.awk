# From the lines that the stages wrote: the same with goals, to the file named by json, and a table for people. Exits with 1 when a stage
# failed or a goal was missed.
function field(line, key,    at, text) {
    at = match(line, "\"" key "\": *(\"[^\"]*\"|[^,}]*)")
    if (!at) {
        return ""
    }
    text = substr(line, RSTART, RLENGTH)
    sub("^\"" key "\": *", "", text)
    gsub("\"", "", text)
    return text
}

function number(text,    x) {
    if (text == "") {
        return "-"
    }
    x = text + 0
    return x >= 1000 || x <= -1000 || x == int(x) ? sprintf("%.0f", x) : sprintf("%.3f", x)
}

BEGIN {
    # Name, field, at least how much.
    n = split("copy_up ratio 0.95;copy_down ratio 0.95;copy_both ratio 0.95;kernel_adamw ratio 0.90;worker_mfu ratio 0.45;" \
        "whole ratio 0.90;size value 5;", rows, ";")
    for (i = 1; i < n; i++) {
        split(rows[i], g, " ")
        which[g[1]] = g[2]
        bound[g[1]] = g[3]
    }
}

/"stage":/ {
    name = field($0, "stage")
    status = field($0, "status")
    how = status == 0 ? "passed" : status == 77 ? "skipped" : "FAILED"
    passed += status == 0
    failed += how == "FAILED"
    line = sprintf("  %-13s %-8s %4d s  %s", name, how, field($0, "seconds"), status == 0 ? "" : field($0, "words"))
    stage_lines[++n_stages] = substr(line, 1, 100)
    printf "{\"name\": \"%s\", \"value\": %s, \"unit\": \"passed\", \"goal\": \"passed\", \"met\": %s, \"seconds\": %d, \"words\": \"%s\"}\n",
        name, status == 77 ? "null" : status == 0, status == 0 ? "true" : status == 77 ? "null" : "false", field($0, "seconds"), field($0, "words") >json
    next
}

/"answer":/ {
    name = field($0, "name")
    sub(/^experiment_/, "", name)
    answer_lines[++n_answers] = substr(sprintf("  %-13s %s", name, field($0, "answer")), 1, 100)
    print >json
    next
}

{
    name = field($0, "name")
    goal = met = ""
    if (name in which && !quick) {
        goal = which[name] " >= " bound[name]
        met = field($0, which[name]) + 0 >= bound[name] ? "true" : "false"
        missed += met == "false"
        sub(/}$/, ", \"goal\": \"" goal "\", \"met\": " met "}")
    }
    print >json
    figure_lines[++n_figures] = sprintf("  %-22s %10s %-9s %10s %7s  %s", name, number(field($0, "value")), field($0, "unit"),
        number(field($0, "yardstick")), number(field($0, "ratio")), goal == "" ? "" : goal (met == "true" ? ": met" : ": MISSED"))
}

END {
    print title
    print machine
    print ""
    for (i = 1; i <= n_stages; i++) {
        print stage_lines[i]
    }
    if (n_answers > 0) {
        print "\n  experiment    answer"
    }
    for (i = 1; i <= n_answers; i++) {
        print answer_lines[i]
    }
    if (n_figures > 0) {
        printf "\n  %-22s %10s %-9s %10s %7s  %s\n", "figure", "value", "unit", "yardstick", "ratio", "goal"
    }
    for (i = 1; i <= n_figures; i++) {
        print figure_lines[i]
    }
    printf "\n%d stages passed, %d failed, %d skipped; %d goals missed; %d s\n", passed, failed, n_stages - passed - failed, missed,
        seconds
    exit failed + missed > 0
}
