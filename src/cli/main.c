#include <stdio.h>

int main(void) {
    puts("diffgemma");
    return 0;
}
