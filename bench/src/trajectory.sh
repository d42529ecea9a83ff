# The program that a trajectory is about, ten files of C and a main, and its tests. Written once.
[ -e parts.h ] || {
    { echo '#define ROUND 0'; echo '#ifndef MENDED'; echo '#define MENDED 0'; echo '#endif'; } > parts.h
    { echo '#include "parts.h"'; echo 'int main(int n, char **words) { int sum = n;'; } > main.c
    for i in 0 1 2 3 4 5 6 7 8 9; do
        echo "int part$i(const char *text);" >> parts.h
        echo "sum += part$i(words[n - 1]);" >> main.c
        cat > part$i.c <<END
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "parts.h"
int part$i(const char *text) {
    int sum = ROUND + MENDED;
    for (size_t k = 0; k < strlen(text); k++) sum += text[k] * $i;
    printf("part %d of %s\n", $i, text);
    return sum;
}
END
    done
    echo 'return sum == 0; }' >> main.c
    cat > test_parts.py <<'END'
import subprocess, unittest
class Parts(unittest.TestCase):
    def test_each_says_its_number(self):
        said = subprocess.run(["./parts", "text"], capture_output=True, text=True, check=True).stdout
        self.assertEqual(said.splitlines(), [f"part {n} of text" for n in range(10)])
    def test_whatever_it_is_about(self):
        for text in "one", "two", "three":
            said = subprocess.run(["./parts", text], capture_output=True, text=True, check=True).stdout
            self.assertEqual(said.count(text), 10)
END
}
